#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>

#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline.h"

// Stages that read several datasets one after the other or in turn.
namespace lockstep::data {

/// The first stage without exact positions among the datasets that a function returned, in words. They are not part of
/// the pipeline's tree, so this is known only once they exist. Thread-safe.
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

/// The elements of several iterators: `cycle_length` of them in turn, `block_length` elements of each. `open` returns
/// the next one, null after the last; one that cannot be opened is one place.
class InTurnIterator final : public ElementIterator {
 public:
  InTurnIterator(std::function<IteratorPtr()> open, int cycle_length, std::int64_t block_length)
      : open_next_(std::move(open)), open_(static_cast<std::size_t>(cycle_length)), block_length_(block_length) {}

  // The order is TensorFlow's: a dataset that ends passes its turn to the next in the cycle, and its slot is refilled
  // from the input when its turn comes again.
  bool next(Element& element) override {
    while (ElementIterator* current = find_open()) {
      Place place;
      swap(place.element, element);
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
          const std::int64_t wanted = std::min(block_length_ - in_block_, left);
          const std::int64_t got = current->skip(wanted);
          if (got < wanted)
            close();
          else
            pass(got);
          return got;
        });
  }

  /// The iterator whose turn it is, opened if needed; null at the end.
  ElementIterator* find_open() {
    while (!ended_ || open_count_ > 0) {
      IteratorPtr& current = open_[place_];
      if (!current && !ended_) {
        current = open_next_();
        ended_ = current == nullptr;
        open_count_ += current ? 1 : 0;
      }
      if (current) return current.get();
      next_place();
    }
    return nullptr;
  }

 private:
  void pass(std::int64_t count) {
    in_block_ += count;
    if (in_block_ == block_length_) next_place();
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

  std::function<IteratorPtr()> open_next_;
  std::vector<IteratorPtr> open_;
  const std::int64_t block_length_;
  std::size_t place_ = 0;
  std::int64_t in_block_ = 0;
  std::size_t open_count_ = 0;
  bool ended_ = false;  ///< there are no more to open
};

IteratorPtr iterate_concatenation(const Stage& both, const IterationContext& context) {
  std::vector<std::pair<StagePtr, IterationContext>> parts;  // the last one first
  IterationContext at = context;
  StagePtr rest = both.shared_from_this();
  for (; rest->traits().elements == StageTraits::Elements::Concatenated; rest = rest->input()) {
    parts.emplace_back(rest->inputs()[1], at.below(1));
    at = at.below(0);
  }
  parts.emplace_back(std::move(rest), std::move(at));
  auto open = [parts = std::move(parts)]() mutable -> IteratorPtr {
    if (parts.empty()) return nullptr;
    const auto [stage, its_context] = std::move(parts.back());
    parts.pop_back();
    return stage->iterate(its_context);
  };
  auto elements = std::make_unique<InTurnIterator>(std::move(open), 1, kEndless);
  elements->find_open();  // the first one starts with the pass
  return elements;
}

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
      given ? std::move(*given)
            : InterleaveOptions{.cycle_length = 1, .block_length = kEndless, .spec = std::move(spec)};
  check(options);
  const auto text = [&](const char* end) {
    return given ? str("interleave(cycle ", options.cycle_length, ", block ", options.block_length, end) : "flat_map";
  };
  const std::string description = text(options.parallel_calls > 0 ? ", read ahead)" : ")");
  const Expansion expand = [expansion = std::move(expansion), description](Element&& element) {
    return call_for_stage(description, [&] { return expansion(std::move(element)); });
  };
  const auto met_obstacle = std::make_shared<MetObstacle>();  // filled by passes
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
             // The time of inner datasets counts as this stage's.
             IterationContext inner = context.below(1).unmeasured();
             // Nested functions report to the outermost stage, which is part of the pipeline's tree.
             if (!inner.met_obstacle) inner.met_obstacle = met_obstacle;
             std::shared_ptr<ElementIterator> elements = below.iterate(context.below(0));
             const auto open = [=, opened = std::uint64_t{0}]() mutable -> IteratorPtr {
               Element element;
               if (!elements->next(element)) return nullptr;
               const IterationContext its_context = inner.pass(opened++);
               const c10::AutoGradMode no_grad(false);
               const StagePtr made = expand(std::move(element));
               if (const auto obstacle = find_position_obstacle(*made)) inner.met_obstacle->note(*obstacle);
               IteratorPtr iterator = made->iterate(its_context);
               return options.parallel_calls > 0 ? read_ahead_in_chunks(std::move(iterator)) : std::move(iterator);
             };
             return std::make_unique<InTurnIterator>(open, options.cycle_length, options.block_length);
           },
       .expand = expand});
}

StagePtr make_concatenate(StagePtr first, StagePtr second) {
  const auto of_both = [](Cardinality (Stage::*count)() const) {
    return [=](const Stage& both) { return concatenated((*both.inputs()[0].*count)(), (*both.inputs()[1].*count)()); };
  };
  return make_stage({std::move(first), std::move(second)},
                    {.kind = "concatenate",
                     .traits = StageTraits::passing_over(StageTraits::Elements::Concatenated),
                     .takes_any_number = true,
                     .cardinality = of_both(&Stage::cardinality),
                     .total_rows = of_both(&Stage::total_rows),
                     .spec = [](const Stage& both) { return common_spec(both.inputs(), "concatenate"); },
                     .iterate = iterate_concatenation});
}

}  // namespace lockstep::data
