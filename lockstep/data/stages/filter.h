#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/stage.h"

// Stages that let elements pass or not, and notes on a pipeline.
namespace lockstep::data {

/// Says something about an element without changing it.
using Predicate = std::function<bool(const Element&)>;

/// The elements for which a function is true.
class LOCKSTEP_EXPORT FilterStage final : public PassThroughStage {
 public:
  FilterStage(StagePtr input, Predicate predicate)
      : PassThroughStage({std::move(input)}), predicate_(std::move(predicate)) {}

  std::string_view kind() const override { return "filter"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Predicate predicate_;
};

/// The elements before the first for which a function is false.
class LOCKSTEP_EXPORT TakeWhileStage final : public PassThroughStage {
 public:
  TakeWhileStage(StagePtr input, Predicate predicate)
      : PassThroughStage({std::move(input)}), predicate_(std::move(predicate)) {}

  std::string_view kind() const override { return "take_while"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return Cardinality::unknown(); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Predicate predicate_;
};

/// The first of all equal elements: tensors of one shape, type and contents, or equal byte strings.
class LOCKSTEP_EXPORT UniqueStage final : public PassThroughStage {
 public:
  explicit UniqueStage(StagePtr input) : PassThroughStage({std::move(input)}) {}

  std::string_view kind() const override { return "unique"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;
};

/// Counts what `ignore_errors` left out. Shared by all iterations; may be read at any time. A pass that is resumed goes
/// once more over what was read before. A counter that saw those errors does not count them a second time; a new one,
/// in a program that goes on where another one stopped, does: after the pass it has what it would have had without the
/// interruption.
class LOCKSTEP_EXPORT ErrorCounter {
 public:
  std::int64_t count() const { return count_.load(); }
  std::string last_message() const;

  /// What failed: place `place` (from 1 on) of a stage's pass with this key.
  struct Where {
    std::uint64_t pass = 0;
    std::int64_t place = 0;
    bool is_resumed = false;
  };
  /// False if it was counted before.
  bool add(const std::string& message, const Where& where);

 private:
  std::atomic<std::int64_t> count_{0};
  mutable std::mutex mutex_;
  std::string last_message_;
  std::map<std::uint64_t, std::int64_t> last_places_;  // of the latest passes with errors, by their keys
  std::deque<std::uint64_t> passes_;                   // the same keys, the oldest first
};

struct IgnoreErrorsOptions {
  std::shared_ptr<ErrorCounter> counter = nullptr;
  bool log = false;                   ///< a warning for each
  std::int64_t give_up_after = 1000;  ///< errors without an element between them: then the last is thrown
};

/// Leaves out elements whose computation throws.
class LOCKSTEP_EXPORT IgnoreErrorsStage final : public PassThroughStage {
 public:
  IgnoreErrorsStage(StagePtr input, IgnoreErrorsOptions options)
      : PassThroughStage({std::move(input)}), options_(std::move(options)) {}

  std::string_view kind() const override { return "ignore_errors"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  IgnoreErrorsOptions options_;
};

/// Declares the number of elements, and checks it at the end.
class LOCKSTEP_EXPORT AssertCardinalityStage final : public PassThroughStage {
 public:
  AssertCardinalityStage(StagePtr input, Cardinality expected)
      : PassThroughStage({std::move(input)}), expected_(expected) {}

  std::string_view kind() const override { return "assert_cardinality"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return expected_; }
  bool has_certain_cardinality() const override { return false; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Cardinality expected_;
};

/// What `distribute` should know about a dataset.
struct DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::Auto;
};

class LOCKSTEP_EXPORT OptionsStage final : public PassThroughStage {
 public:
  OptionsStage(StagePtr input, DatasetOptions options) : PassThroughStage({std::move(input)}), options_(options) {}

  std::string_view kind() const override { return "with_options"; }
  std::string describe() const override;
  std::string identity() const override { return ""; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  RowSourcePtr row_source() const override { return input()->row_source(); }
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override {
    return input()->make_index_iterator(context);
  }

  const DatasetOptions& options() const { return options_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override { return input()->iterate(context); }

 private:
  DatasetOptions options_;
};

}  // namespace lockstep::data
