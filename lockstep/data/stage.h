#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

/// Reads an order number by number, fetching many at a time.
class IndexReader {
 public:
  explicit IndexReader(IndexIteratorPtr order) : order_(std::move(order)) {}

  /// Writes the next number; false at the end.
  bool operator()(std::int64_t& index) {
    if (at_ == filled_) {
      filled_ = order_->next(ahead_);
      at_ = 0;
      if (filled_ == 0) return false;
    }
    index = ahead_[at_++];
    return true;
  }
  std::int64_t skip(std::int64_t count) {
    const auto from_ahead = std::min<std::int64_t>(count, static_cast<std::int64_t>(filled_ - at_));
    at_ += static_cast<std::size_t>(from_ahead);
    return from_ahead + (from_ahead < count ? order_->skip(count - from_ahead) : 0);
  }
  IndexIterator& order() const { return *order_; }

 private:
  IndexIteratorPtr order_;
  std::array<std::int64_t, 128> ahead_{};
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
};

/// How rows become batches.
struct BatchShape {
  std::int64_t size = 1;
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows

  /// The first dimension of a batch.
  std::int64_t known_rows() const { return drop_remainder ? size : PartialShape::kUnknown; }
};

/// How far a cardinality can be relied on.
enum class Reliability {
  None,      ///< there may be nothing to repeat, and then fewer elements
  Promised,  ///< declared by the user, or expected from shapes
  Certain    ///< it is the number of places, even if elements fail
};

/// State that a stage keeps from one pass to the next (`cache`).
class LOCKSTEP_EXPORT PassState {
 public:
  virtual ~PassState();
  /// Writes the state that determines it, and adopts it in another program before reading starts. FailedPrecondition if
  /// the state is already different.
  virtual void save(Position& position) const = 0;
  virtual void restore(Position& position) = 0;
  /// How the pass that fills it reads the input.
  virtual IterationContext first_pass(const IterationContext& context) const = 0;
};

/// Everything about a kind of stage. Its functions are given the input, or the stage itself if it has none or any
/// number of them. Whatever is left out is as in the input.
struct StageDescription {
  std::string kind;         ///< the name of the stage, for people: "batch", "map", "tfrecord"
  std::string text = kind;  ///< one line: "batch(256, drop_remainder)"
  /// The same for `fingerprint`: everything that affects the elements and nothing that does not, such as numbers of
  /// threads. Empty for stages that pass their input through.
  std::string identity = text;
  StageTraits traits = {};
  bool takes_any_number = false;  ///< any number of inputs
  std::function<Cardinality(const Stage& below)> cardinality = nullptr;
  std::function<Reliability(const Stage& below)> reliability = nullptr;  ///< otherwise the least of the inputs
  std::function<Cardinality(const Stage& below)> total_rows = nullptr;   ///< otherwise, or if unknown, by the spec
  std::function<ElementSpec(const Stage& below)> spec = nullptr;
  std::function<std::optional<std::string>()> position_obstacle = nullptr;
  std::function<RowSourcePtr(const Stage& below)> rows = nullptr;  ///< Stage::row_source
  /// Stage::make_index_iterator, if there are `rows`.
  std::function<IndexIteratorPtr(const Stage& below, const IterationContext&)> order = nullptr;
  /// Stage::make_batch_iterator.
  std::function<IteratorPtr(const Stage& below, const IterationContext&, const BatchShape&, const std::string& where)>
      batches = nullptr;
  std::function<IteratorPtr(const Stage& below, const IterationContext&)> iterate;
  std::function<StagePtr(Element&&)> expand = nullptr;  ///< for Source::Function: the dataset made of an element
  std::shared_ptr<PassState> pass_state = nullptr;      ///< state kept from one pass to the next
  /// The stage's description on another input, if it changes: its text names the input, or it keeps state. With several
  /// workers the input holds one worker's part, and no state may be shared with the others.
  std::function<StageDescription(const Stage& below, int workers, int worker)> on_other_input = nullptr;
  int parallel_calls = 0;  ///< its own computing threads, for reports
  std::string label = {};  ///< the user's name for the stage, for reports
};

/// One stage of a pipeline: an immutable description with its inputs below it. Plans read and rewrite trees of stages;
/// iterating makes an executor for each.
class LOCKSTEP_EXPORT Stage : public std::enable_shared_from_this<Stage> {
 public:
  Stage(std::vector<StagePtr> inputs, StageDescription description);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage();

  /// See StageDescription.
  const std::string& kind() const { return is_.kind; }
  const std::string& describe() const { return is_.text; }
  const std::string& identity() const { return is_.identity; }
  const StageTraits& traits() const { return is_.traits; }
  const StageDescription& description() const { return is_; }

  Cardinality cardinality() const { return cardinality_; }
  /// Whether `cardinality` is reliable. By default as far as the inputs' are.
  Reliability reliability() const { return reliability_; }
  /// The cardinality if it is reliable enough, otherwise unknown.
  Cardinality cardinality_if(Reliability least) const {
    return reliability() >= least ? cardinality() : Cardinality::unknown();
  }
  /// The rows of all batches together, as far as known without reading any.
  Cardinality total_rows() const;
  const ElementSpec& element_spec() const { return spec_; }

  const std::vector<StagePtr>& inputs() const { return inputs_; }
  const StagePtr& input() const { return inputs_.front(); }
  /// How many stages are on the longest path to a source, this one included.
  std::int64_t depth() const { return depth_; }
  /// The number of passes begun; for begin_pass only.
  std::uint64_t& passes() const { return passes_; }
  /// Identifies the stage in a meter: a copy on other inputs counts for its original.
  const std::shared_ptr<const void>& measured_as() const { return measured_as_; }
  /// The same stage on other inputs; see StageDescription::on_other_input.
  StagePtr with_inputs(std::vector<StagePtr> inputs, int workers = 1, int worker = 0) const;

  /// Why a position in this stage's stream cannot be saved exactly, if so: "a generator that cannot replay".
  std::optional<std::string> position_obstacle() const;

  /// For stages whose elements are rows of a source in some order: the source, and the order. A batch can then be
  /// gathered in one call. Null for all others.
  RowSourcePtr row_source() const;
  IndexIteratorPtr make_index_iterator(const IterationContext& context) const;
  /// A faster way to make batches of this stage's elements than one by one, if it has one. `where` is for messages.
  IteratorPtr make_batch_iterator(const IterationContext& context, const BatchShape& shape,
                                  const std::string& where) const;

  /// Starts a pass over the elements. Stages start their inputs with this too.
  IteratorPtr iterate(const IterationContext& context) const;

 private:
  const Stage& basis() const;

  std::vector<StagePtr> inputs_;
  const StageDescription is_;
  // Computed once: a stage may be shared by several inputs at every level, and programs build long chains of
  // `concatenate` in loops, too deep for recursion.
  Cardinality cardinality_ = Cardinality::unknown();
  Reliability reliability_ = Reliability::Certain;
  ElementSpec spec_;
  std::int64_t depth_ = 1;
  std::shared_ptr<const void> measured_as_ = std::make_shared<char>();
  mutable std::uint64_t passes_ = 0;
};

LOCKSTEP_EXPORT StagePtr make_stage(std::vector<StagePtr> inputs, StageDescription description);

/// The stage with `change(input)` in place of each input; the stage itself if no input changes.
template <class Change>
StagePtr with_changed_inputs(const StagePtr& stage, Change&& change) {
  std::vector<StagePtr> inputs;
  for (const StagePtr& input : stage->inputs()) inputs.push_back(change(input));
  return inputs == stage->inputs() ? stage : stage->with_inputs(std::move(inputs));
}

/// The first stage below those that pass elements through, such as `prefetch`; the stage itself if it does not.
LOCKSTEP_EXPORT const Stage& below_plain_stages(const Stage& stage);

/// The number of rows of every batch, if the spec determines it.
LOCKSTEP_EXPORT std::optional<std::int64_t> rows_by_spec(const ElementSpec& spec);

/// Yields elements one by one from rows and the order to visit them in.
LOCKSTEP_EXPORT IteratorPtr make_row_iterator(RowSourcePtr rows, IndexIteratorPtr order);

}  // namespace lockstep::data
