#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>

#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline.h"

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
  InterleaveIterator(const Stage& input, IterationContext context, Expansion expansion, InterleaveOptions options,
                     const std::shared_ptr<MetObstacle>& met_obstacle)
      : context_(std::move(context)),
        expansion_(std::move(expansion)),
        options_(std::move(options)),
        input_(input.iterate(context_.below(0))),
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
    const StagePtr made = expansion_(std::move(element));
    if (const auto obstacle = find_position_obstacle(*made)) context_.met_obstacle->note(*obstacle);
    place = made->iterate(inner);
    if (options_.parallel_calls > 0) place = read_ahead_in_chunks(std::move(place));
    ++open_count_;
  }

  IterationContext context_;
  Expansion expansion_;
  InterleaveOptions options_;
  IteratorPtr input_;
  std::vector<IteratorPtr> open_;
  std::size_t place_ = 0;
  std::int64_t in_block_ = 0;
  std::size_t open_count_ = 0;
  std::uint64_t opened_ = 0;
  bool input_ended_ = false;
};

void check(const InterleaveOptions& options) {
  if (options.cycle_length < 1 || options.block_length < 1)
    refuse_option(
        "interleave",
        str("cycle_length and block_length must be >= 1, got ", options.cycle_length, " and ", options.block_length),
        "leave them out for 4 datasets in turn, an element each");
  if (options.parallel_calls < 0)
    refuse_option("interleave", str("parallel_calls must be >= 0, got ", options.parallel_calls),
                  "give 0 to read on the caller's thread, or 1 to read every open dataset ahead on "
                  "a thread of its own");
}

}  // namespace

StagePtr make_interleave(StagePtr input, Expansion expansion, ElementSpec result,
                         std::optional<InterleaveOptions> given, SpecFunction spec) {
  const InterleaveOptions options =
      given ? std::move(*given) : InterleaveOptions{.cycle_length = 1, .spec = std::move(spec)};
  check(options);
  const auto text = [&](const char* end) {
    return given ? str("interleave(cycle ", options.cycle_length, ", block ", options.block_length, end) : "flat_map";
  };
  const std::string description = text(options.parallel_calls > 0 ? ", read ahead)" : ")");
  const Expansion expand = [expansion = std::move(expansion), description](Element&& element) {
    return call_for_stage(description, [&] { return expansion(std::move(element)); });
  };
  const auto met_obstacle = std::make_shared<MetObstacle>();  // where passes note what they meet
  return make_stage(
      {std::move(input)},
      {.kind = given ? "interleave" : "flat_map",
       .text = description,
       .identity = text(")"),
       .traits = {.source = StageTraits::Source::Function},
       .cardinality = unknown_unless_empty,
       .spec = [result = std::move(result),
                options](const Stage& below) { return options.spec ? options.spec(below.element_spec()) : result; },
       .position_obstacle = [met_obstacle]() -> std::optional<std::string> {
         const auto met = met_obstacle->get();
         return met ? std::optional(str("its function made a dataset with ", *met)) : std::nullopt;
       },
       .iterate =
           [=](const Stage& below, const IterationContext& context) {
             return std::make_unique<InterleaveIterator>(below, context, expand, options, met_obstacle);
           },
       .expand = expand});
}

}  // namespace lockstep::data
