#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/cardinality.h"
#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/iterator.h"
#include "lockstep/data/row_source.h"
#include "lockstep/data/stage_traits.h"

namespace lockstep::data {

/// The order in which a stage visits the rows of its source, as plain numbers.
class LOCKSTEP_EXPORT IndexIterator : public PlaceIterator {
 public:
  /// Writes up to `indices.size()` row numbers and returns how many; fewer only at the end.
  virtual std::size_t next(std::span<std::int64_t> indices) = 0;
};
using IndexIteratorPtr = std::unique_ptr<IndexIterator>;

/// How rows become batches.
struct BatchShape {
  std::int64_t size = 1;
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows

  /// Of the first dimension of a batch.
  std::int64_t known_rows() const { return drop_remainder ? size : PartialShape::kUnknown; }
};

/// Whether one may rely on a cardinality.
enum class Trust {
  None,      ///< there may be nothing to repeat, and then fewer
  Promised,  ///< the user says so, or shapes let one expect it
  Certain    ///< it is the number of places, even where elements fail
};

/// One stage of a pipeline: an immutable description with its inputs below it. Plans read and rewrite trees of stages;
/// iterating makes an executor for each.
class LOCKSTEP_EXPORT Stage : public std::enable_shared_from_this<Stage> {
 public:
  explicit Stage(std::vector<StagePtr> inputs = {});
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage();

  /// The name of the stage, for people: "batch", "map", "tfrecord".
  virtual std::string_view kind() const = 0;
  /// One line: "batch(256, drop_remainder)".
  virtual std::string describe() const { return std::string(kind()); }
  /// The same for `fingerprint`: all that decides the elements and nothing that does not, such as numbers of threads.
  /// Empty for stages that pass their input on as it is.
  virtual std::string identity() const { return describe(); }
  virtual StageTraits traits() const { return {}; }

  virtual Cardinality cardinality() const = 0;
  /// Whether `cardinality` will come true. By default as far as the inputs' do.
  virtual Trust trust() const { return trust_in_inputs_; }
  /// The cardinality if it will come true, else unknown.
  Cardinality cardinality_if(Trust least) const { return trust() >= least ? cardinality() : Cardinality::unknown(); }
  /// The rows of all batches together, as far as they are known without reading any.
  virtual Cardinality total_rows() const;
  virtual ElementSpec element_spec() const = 0;

  const std::vector<StagePtr>& inputs() const { return inputs_; }
  const StagePtr& input() const { return inputs_.front(); }
  /// How many stages lie on the longest way to a source, this one included.
  std::int64_t depth() const { return depth_; }
  /// The passes that were begun; see begin_pass, which alone may use it.
  std::uint64_t& passes() const { return passes_; }
  /// What a meter knows the stage by: a copy on other inputs counts for the stage it was made of.
  const std::shared_ptr<const void>& measured_as() const { return measured_as_; }
  /// The same stage on other inputs; see StageOf.
  virtual StagePtr with_inputs(std::vector<StagePtr> inputs) const = 0;
  /// The same where the inputs hold only the part of one of several workers: nothing may be shared with the others.
  virtual StagePtr for_worker(std::vector<StagePtr> inputs, int workers, int worker) const;
  /// Of Source::Function: the dataset that its function makes of an element.
  virtual StagePtr expand(Element&& element) const;

  /// Why a position in this stage's stream cannot be saved exactly, if so: "a generator that cannot replay".
  virtual std::optional<std::string> position_obstacle() const { return std::nullopt; }
  /// For stages that keep something from one pass to the next (`cache`): writes what decides it, and takes it over in
  /// another program before it starts to read. FailedPrecondition if something else was decided already.
  virtual void save_lasting(Position& position) const;
  virtual void restore_lasting(Position& position) const;

  /// For stages whose elements are rows of a source in some order: the source, and the order. Then a batch is gathered
  /// in one call. Null for all others.
  virtual RowSourcePtr row_source() const { return nullptr; }
  virtual IndexIteratorPtr make_index_iterator(const IterationContext& context) const;
  /// A faster way to batches of this stage's elements than one by one, if it has one. `where` is for messages.
  virtual IteratorPtr make_batch_iterator(const IterationContext& context, const BatchShape& shape,
                                          const std::string& where) const;
  /// How what is below a cache is read by the pass that fills it.
  virtual IterationContext first_pass(const IterationContext& context) const { return context; }
  /// Fills in what reports tell about this kind of stage beyond its name.
  virtual void describe_to(StageCounters&) const {}

  /// Starts a pass over the elements. Stages start their inputs with this, too.
  IteratorPtr iterate(const IterationContext& context) const;

 protected:
  Stage(const Stage&) = default;  // for StageOf
  virtual void set_inputs(std::vector<StagePtr> inputs);
  virtual IteratorPtr make_iterator(const IterationContext& context) const = 0;

 private:
  std::vector<StagePtr> inputs_;
  Trust trust_in_inputs_ = Trust::Certain;
  std::int64_t depth_ = 1;
  std::shared_ptr<const void> measured_as_ = std::make_shared<char>();
  mutable std::uint64_t passes_ = 0;
};

/// `with_inputs` for a stage `Self`: a copy with other inputs.
template <class Self>
class StageOf : public Stage {
 public:
  using Stage::Stage;

  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    if (inputs.empty()) return shared_from_this();
    auto copy = std::make_shared<Self>(static_cast<const Self&>(*this));
    static_cast<StageOf&>(*copy).set_inputs(std::move(inputs));
    return copy;
  }

 protected:
  std::shared_ptr<const Self> self() const { return std::static_pointer_cast<const Self>(shared_from_this()); }
};

/// The stage on `change(input)` in place of each input; the stage itself if that changes none.
template <class Change>
StagePtr with_changed_inputs(const StagePtr& stage, Change&& change) {
  std::vector<StagePtr> inputs;
  for (const StagePtr& input : stage->inputs()) inputs.push_back(change(input));
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

/// The first stage below those that pass elements on as they are, such as `prefetch`; the stage itself if it does not.
LOCKSTEP_EXPORT const Stage& below_plain_stages(const Stage& stage);

/// The number of rows of every batch, if the spec tells it.
LOCKSTEP_EXPORT std::optional<std::int64_t> rows_by_spec(const ElementSpec& spec);

/// Elements one by one from rows and the order to visit them in.
LOCKSTEP_EXPORT IteratorPtr make_row_iterator(RowSourcePtr rows, IndexIteratorPtr indices);

}  // namespace lockstep::data
