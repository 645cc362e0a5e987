#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/cardinality.h"
#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// Rows that can be read in any order: tensors in memory, a mapped file. Immutable; read by many threads at once.
class LOCKSTEP_EXPORT RowSource {
 public:
  virtual ~RowSource();
  virtual std::int64_t size() const = 0;
  /// The rows of these indices as one batch, in memory of their own that comes from `pool`.
  virtual void gather(std::span<const std::int64_t> indices, BufferPool& pool, Element& batch) const = 0;
  /// One row, in memory of its own: user functions may write into it.
  virtual Element row(std::int64_t index) const = 0;
};
using RowSourcePtr = std::shared_ptr<const RowSource>;

/// The order in which a stage visits the rows of its source, as plain numbers.
class LOCKSTEP_EXPORT IndexIterator : public PlaceIterator {
 public:
  /// Writes up to `indices.size()` row numbers and says how many; fewer only at the end.
  virtual std::size_t next(std::span<std::int64_t> indices) = 0;
  std::int64_t skip(std::int64_t count) override;
};

/// One stage of a pipeline: an immutable description with its inputs below it. Plans read and rewrite trees of stages;
/// iterating makes an executor for each.
class LOCKSTEP_EXPORT Stage : public std::enable_shared_from_this<Stage> {
 public:
  explicit Stage(std::vector<StagePtr> inputs);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage();

  /// What kind of stage this is: "batch", "map", "tfrecord". Plans decide by it.
  virtual std::string_view kind() const = 0;
  /// One line: "batch(256, drop_remainder)".
  virtual std::string describe() const { return std::string(kind()); }
  /// The same for `fingerprint`: all that decides the elements and nothing that does not, such as numbers of threads.
  /// Empty for stages that pass their input on as it is.
  virtual std::string identity() const { return describe(); }
  /// The same stage on other inputs.
  virtual StagePtr with_inputs(std::vector<StagePtr> inputs) const = 0;
  virtual Cardinality cardinality() const = 0;
  /// Whether `cardinality()` is certain to be the number of places, also where elements fail. What a user promises, or
  /// shapes let one expect, is not. By default it is if it is for the inputs.
  virtual bool has_certain_cardinality() const { return inputs_are_certain_; }
  /// The cardinality as far as one may count with it, as skipping does.
  Cardinality certain_cardinality() const { return has_certain_cardinality() ? cardinality() : Cardinality::unknown(); }
  virtual ElementSpec element_spec() const = 0;

  const std::vector<StagePtr>& inputs() const { return inputs_; }
  const StagePtr& input() const { return inputs_.front(); }

  /// Why a position in this stage's stream cannot be saved exactly, if so: "a generator that cannot replay".
  virtual std::optional<std::string> position_obstacle() const { return std::nullopt; }

  /// For stages that keep something from one pass to the next (`cache`): writes what decides it, and takes it over in
  /// another program before it starts to read. FailedPrecondition if something else was decided already.
  virtual void save_lasting(Position& position) const;
  virtual void restore_lasting(Position& position) const;

  /// For stages whose elements are rows of a source in some order: the source, and the order. Then a batch is gathered
  /// in one call. Null for all others.
  virtual RowSourcePtr row_source() const { return nullptr; }
  virtual std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const;

  /// Starts a pass over the elements. Stages start their inputs with this, too.
  IteratorPtr iterate(const IterationContext& context) const;

 protected:
  virtual IteratorPtr make_iterator(const IterationContext& context) const = 0;

 private:
  friend class PassCounter;

  std::vector<StagePtr> inputs_;
  bool inputs_are_certain_;
  mutable std::uint64_t passes_ = 0;  // see begin_pass
};

/// The stage as it is; FailedPrecondition if there is none.
LOCKSTEP_EXPORT const StagePtr& require_stage(const StagePtr& stage);

/// How many stages of this kind there are in a pipeline.
LOCKSTEP_EXPORT std::int64_t count_stages(const Stage& stage, std::string_view kind);
/// How many stages lie on the longest way from the end of a pipeline to a source.
LOCKSTEP_EXPORT std::int64_t depth_of(const Stage& stage);

/// The number of the next pass over a pipeline. A pass counts for every stage in it: datasets that share a shuffle go
/// on counting where the other one was, so that `shuffled.map(f)` made anew for each epoch gives another order each
/// time.
LOCKSTEP_EXPORT std::uint64_t begin_pass(const Stage& stage);
/// After a resume the next pass is the one behind the resumed pass, as if there had been no interruption.
LOCKSTEP_EXPORT void go_on_after_pass(const Stage& stage, std::uint64_t epoch);

/// Elements one by one from rows and the order to visit them in.
LOCKSTEP_EXPORT IteratorPtr make_row_iterator(RowSourcePtr rows, std::unique_ptr<IndexIterator> indices);

/// A stage with one input whose elements it passes on as they are; `with_inputs` and the spec are the same for all.
class LOCKSTEP_EXPORT PassThroughStage : public Stage {
 public:
  using Stage::Stage;
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override { return input()->element_spec(); }
};

/// The pipeline as a tree, the last stage first:
///
///     prefetch(2)
///     └─ batch(64)
///        └─ shuffle(4096)
///           └─ from_tensor_slices(60000 rows: float32[784], int64[])
///
/// Datasets that were concatenated one after the other stand side by side.
LOCKSTEP_EXPORT std::string print_tree(const Stage& stage);

/// What a pipeline does to its data, as a tree of the stages' identities: equal for two pipelines in which a position
/// means the same, as far as that can be seen. Functions cannot.
LOCKSTEP_EXPORT std::string fingerprint(const Stage& stage);

/// What the stages of a pipeline keep from pass to pass; see Stage::save_lasting.
LOCKSTEP_EXPORT void save_all_lasting(const Stage& stage, Position& position);
LOCKSTEP_EXPORT void restore_all_lasting(const Stage& stage, Position& position);

/// The first stage (from the end of the pipeline) that cannot promise an exact position, in words; none if all can.
LOCKSTEP_EXPORT std::optional<std::string> find_position_obstacle(const Stage& stage);

/// Iterates, counts, and knows how to save its place: what `Dataset` and `distribute` use to read a pipeline.
class LOCKSTEP_EXPORT PipelineIterator {
 public:
  PipelineIterator(StagePtr stage, IterationContext context);

  bool next(Element& element);
  std::int64_t skip(std::int64_t count);
  /// Places passed: elements taken or skipped, and those that failed.
  std::int64_t consumed() const { return consumed_; }
  const Stage& stage() const { return *stage_; }

  /// The place behind the last element taken, or behind the one that `next` failed at. FailedPrecondition names the
  /// stage that cannot promise it.
  IteratorState save() const;
  /// An iterator of the same pipeline that goes on exactly there. InvalidArgument if the pipeline differs.
  static PipelineIterator restore(StagePtr stage, const IteratorState& state,
                                  std::shared_ptr<StageMeter> meter = nullptr);

 private:
  StagePtr stage_;
  IterationContext context_;
  IteratorPtr iterator_;
  std::int64_t consumed_ = 0;
};

}  // namespace lockstep::data
