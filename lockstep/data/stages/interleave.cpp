#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/place.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {

/// The first stage that cannot promise exact positions among the datasets that a function made, in words. They are not
/// part of the pipeline's tree, so it is known only once they are there. Written and read by any thread.
class MetObstacle {
 public:
  void note(const std::string& obstacle) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = obstacle;
  }
  std::optional<std::string> get() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> first_;
};

namespace {

class InterleaveIterator final : public ElementIterator {
 public:
  InterleaveIterator(StagePtr stage, IterationContext context, InterleaveOptions options,
                     const std::shared_ptr<MetObstacle>& met_obstacle)
      : stage_(std::move(stage)),
        context_(std::move(context)),
        options_(std::move(options)),
        input_(stage_->input()->iterate(context_.below(0))),
        open_(static_cast<std::size_t>(options_.cycle_length)) {
    context_ = context_.below(1);
    context_.meter = nullptr;  // the time of inner datasets counts as this stage's own
    // Functions within functions tell the stage that is part of the pipeline's tree.
    if (!context_.met_obstacle) context_.met_obstacle = met_obstacle;
  }

  // The order is TensorFlow's: a dataset that ends gives its turn to the next in the cycle, and its place is filled
  // from the input when it is its turn again.
  bool next(Element& element) override {
    while (ElementIterator* current = find_open()) {
      Place place;
      std::swap(place.element, element);
      if (!place.read(*current)) {
        close();
        continue;
      }
      pass(1);
      place.give(element);
      return true;
    }
    return false;
  }

  std::int64_t skip(std::int64_t count) override {
    ElementIterator* current = nullptr;
    return skip_within_parts(
        count, [&] { return (current = find_open()) != nullptr; },
        [&](std::int64_t left) {
          const std::int64_t wanted = std::min(options_.block_length - in_block_, left);
          const std::int64_t got = current->skip(wanted);
          if (got < wanted)
            close();
          else
            pass(got);
          return got;
        });
  }

 private:
  /// The dataset whose turn it is, opened if need be; null at the end.
  ElementIterator* find_open() {
    while (!input_ended_ || open_count_ > 0) {
      if (!open_[place_] && !input_ended_) open_next(open_[place_]);
      if (open_[place_]) return open_[place_].get();
      next_place();
    }
    return nullptr;
  }

  void pass(std::int64_t count) {
    in_block_ += count;
    if (in_block_ == options_.block_length) next_place();
  }

  void close() {
    open_[place_] = nullptr;
    --open_count_;
    next_place();
  }

  void next_place() {
    in_block_ = 0;
    place_ = (place_ + 1) % open_.size();
  }

  void open_next(IteratorPtr& place) {
    Element element;
    if (!input_->next(element)) {
      input_ended_ = true;
      return;
    }
    const IterationContext inner = context_.pass(opened_++);
    const c10::AutoGradMode no_grad(false);
    const StagePtr made = stage_->expand(std::move(element));
    if (const auto obstacle = find_position_obstacle(*made)) context_.met_obstacle->note(*obstacle);
    place = made->iterate(inner);
    if (options_.parallel_calls > 0) place = read_ahead_in_chunks(std::move(place));
    ++open_count_;
  }

  StagePtr stage_;
  IterationContext context_;
  InterleaveOptions options_;
  IteratorPtr input_;
  std::vector<IteratorPtr> open_;
  std::size_t place_ = 0;
  std::int64_t in_block_ = 0;
  std::size_t open_count_ = 0;
  std::uint64_t opened_ = 0;
  bool input_ended_ = false;
};

class InterleaveStage final : public StageOf<InterleaveStage> {
 public:
  InterleaveStage(StagePtr input, Expansion expansion, ElementSpec result, std::optional<InterleaveOptions> options,
                  SpecFunction spec)
      : StageOf({std::move(input)}),
        expansion_(std::move(expansion)),
        result_(std::move(result)),
        is_flat_map_(!options),
        options_(options ? std::move(*options) : InterleaveOptions{.cycle_length = 1, .spec = std::move(spec)}) {
    if (options_.cycle_length < 1 || options_.block_length < 1)
      throw InvalidArgument(errors::kBadOption, {.what = str("cycle_length and block_length must be >= 1, got ",
                                                             options_.cycle_length, " and ", options_.block_length),
                                                 .where = "interleave",
                                                 .help = "leave them out for 4 datasets in turn, an element each"});
    if (options_.parallel_calls < 0)
      throw InvalidArgument(errors::kBadOption,
                            {.what = str("parallel_calls must be >= 0, got ", options_.parallel_calls),
                             .where = "interleave",
                             .help = "give 0 to read on the caller's thread, or 1 to read every open dataset ahead on "
                                     "a thread of its own"});
  }

  std::string_view kind() const override { return is_flat_map_ ? "flat_map" : "interleave"; }
  std::string describe() const override { return text(options_.parallel_calls > 0 ? ", read ahead)" : ")"); }
  std::string identity() const override { return text(")"); }
  StageTraits traits() const override { return {.source = StageTraits::Source::Function}; }
  Cardinality cardinality() const override {
    return input()->cardinality() == Cardinality(0) ? Cardinality(0) : Cardinality::unknown();
  }
  ElementSpec element_spec() const override { return options_.spec ? options_.spec(input()->element_spec()) : result_; }
  std::optional<std::string> position_obstacle() const override {
    const auto met = met_obstacle_->get();
    return met ? std::optional(str("its function made a dataset with ", *met)) : std::nullopt;
  }
  StagePtr expand(Element&& element) const override {
    return call_for_stage(describe(), [&] { return expansion_(std::move(element)); });
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<InterleaveIterator>(shared_from_this(), context, options_, met_obstacle_);
  }

 private:
  std::string text(const char* end) const {
    if (is_flat_map_) return "flat_map";
    return str("interleave(cycle ", options_.cycle_length, ", block ", options_.block_length, end);
  }

  Expansion expansion_;
  ElementSpec result_;
  bool is_flat_map_;
  InterleaveOptions options_;
  std::shared_ptr<MetObstacle> met_obstacle_ = std::make_shared<MetObstacle>();  // where passes note what they meet
};

}  // namespace

StagePtr make_interleave(StagePtr input, Expansion expansion, ElementSpec result,
                         std::optional<InterleaveOptions> options, SpecFunction spec) {
  return std::make_shared<InterleaveStage>(std::move(input), std::move(expansion), std::move(result),
                                           std::move(options), std::move(spec));
}

}  // namespace lockstep::data
