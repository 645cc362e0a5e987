#pragma once

#include <c10/core/Scalar.h>

#include <optional>
#include <vector>

#include "lockstep/data/stage.h"

namespace lockstep::data {

struct PaddedBatchOptions {
  /// One for each component: sizes to pad to, -1 for the longest of the batch. Empty: the longest everywhere.
  std::vector<std::optional<std::vector<std::int64_t>>> padded_shapes = {};
  /// One for each component, or one for all, of a value that its type can hold; none: 0.
  std::vector<c10::Scalar> padding_values = {};
  bool drop_remainder = false;
};

/// Batches of rows whose shapes differ: shorter ones are filled up.
class LOCKSTEP_EXPORT PaddedBatchStage final : public Stage {
 public:
  PaddedBatchStage(StagePtr input, std::int64_t batch_size, PaddedBatchOptions options);

  std::string_view kind() const override { return "padded_batch"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;
  ElementSpec element_spec() const override;

  std::int64_t batch_size() const { return batch_size_; }
  bool drop_remainder() const { return options_.drop_remainder; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::int64_t batch_size_;
  PaddedBatchOptions options_;
};

/// The rows of batches, one by one.
class LOCKSTEP_EXPORT UnbatchStage final : public Stage {
 public:
  explicit UnbatchStage(StagePtr input);

  std::string_view kind() const override { return "unbatch"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;
  /// A batch that fails is one place, whatever number of rows it would have had.
  bool has_certain_cardinality() const override { return false; }
  ElementSpec element_spec() const override { return input()->element_spec().unbatched(); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;
};

}  // namespace lockstep::data
