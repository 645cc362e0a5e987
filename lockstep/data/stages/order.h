#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/stage.h"

// Stages that only choose and order the elements of their input. Over rows of a source they work on plain numbers, so
// that `from_tensor_slices -> shuffle -> shard -> repeat -> batch` costs one gather per batch.
namespace lockstep::data {

class LOCKSTEP_EXPORT OrderStage : public PassThroughStage {
 public:
  using PassThroughStage::PassThroughStage;
  RowSourcePtr row_source() const override { return input()->row_source(); }
};

struct ShuffleOptions {
  std::optional<std::uint64_t> seed = std::nullopt;  ///< without: from the job's seed and the place in the pipeline
  bool reshuffle_each_iteration = true;              ///< another order in every pass
};

/// Keeps a buffer of elements and gives out a random one of them at a time: as tf.data, uniform over the whole data
/// exactly if the buffer holds all of it.
class LOCKSTEP_EXPORT ShuffleStage final : public OrderStage {
 public:
  ShuffleStage(StagePtr input, std::int64_t buffer_size, ShuffleOptions options = {});

  std::string_view kind() const override { return "shuffle"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

  std::int64_t buffer_size() const { return buffer_size_; }
  const ShuffleOptions& options() const { return options_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::uint64_t key(const IterationContext& context) const;

  std::int64_t buffer_size_;
  ShuffleOptions options_;
};

/// An order stage with a number of elements or passes; -1 means all, or for ever.
class LOCKSTEP_EXPORT CountedStage : public OrderStage {
 public:
  CountedStage(StagePtr input, std::string_view kind, std::int64_t count);

  std::string_view kind() const override { return kind_; }
  std::string describe() const override;  ///< "take(5)"

  std::int64_t count() const { return count_; }

 private:
  std::string_view kind_;
  std::int64_t count_;
};

/// The whole input several times; -1 for ever.
class LOCKSTEP_EXPORT RepeatStage final : public CountedStage {
 public:
  RepeatStage(StagePtr input, std::int64_t count) : CountedStage(std::move(input), "repeat", count) {}

  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return repeated(input()->cardinality(), count()); }
  /// Repeated for ever, nothing stays nothing.
  bool has_certain_cardinality() const override { return !input()->certain_cardinality().is_unknown(); }
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;
};

/// The first `count` elements; -1 for all.
class LOCKSTEP_EXPORT TakeStage final : public CountedStage {
 public:
  TakeStage(StagePtr input, std::int64_t count) : CountedStage(std::move(input), "take", count) {}

  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return taken(input()->cardinality(), count()); }
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;
};

/// All but the first `count` elements; -1 for none.
class LOCKSTEP_EXPORT SkipStage final : public CountedStage {
 public:
  SkipStage(StagePtr input, std::int64_t count) : CountedStage(std::move(input), "skip", count) {}

  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return skipped(input()->cardinality(), count()); }
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;
};

/// Elements index, index + shards, ... `shard(kShardHint, kShardHint)` leaves both to AutoShardPolicy::Hint.
class LOCKSTEP_EXPORT ShardStage final : public OrderStage {
 public:
  ShardStage(StagePtr input, std::int64_t shards, std::int64_t index);

  std::string_view kind() const override { return "shard"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

  bool is_hint() const { return shards_ == kShardHint; }
  std::int64_t shards() const { return shards_; }
  std::int64_t index() const { return index_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  void check_not_hint() const;

  std::int64_t shards_;
  std::int64_t index_;
};

}  // namespace lockstep::data
