#pragma once

#include <optional>
#include <vector>

#include "lockstep/data/stage.h"

namespace lockstep::data {

struct BatchOptions {
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows
  int parallel_calls = 0;       ///< only how TensorFlow tells its parallel batch node apart; batches are the same
};

class LOCKSTEP_EXPORT BatchStage final : public Stage {
 public:
  BatchStage(StagePtr input, std::int64_t batch_size, BatchOptions options = {});

  std::string_view kind() const override { return options_.parallel_calls > 0 ? "parallel_batch" : "batch"; }
  std::string describe() const override;
  std::string identity() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;
  ElementSpec element_spec() const override;

  std::int64_t batch_size() const { return batch_size_; }
  bool drop_remainder() const { return options_.drop_remainder; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::int64_t batch_size_;
  BatchOptions options_;
};

}  // namespace lockstep::data
