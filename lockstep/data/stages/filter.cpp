#include <unordered_set>

#include "lockstep/base/logging.h"
#include "lockstep/data/element_bytes.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/random_key.h"

// Stages that pass on some of their input's elements.
namespace lockstep::data {
namespace {

Cardinality unknown_cardinality(const Stage&) { return Cardinality::unknown(); }

/// Records a dropped element.
void note(const IgnoreErrorsOptions& options, const ErrorCounter::Where& where, const std::string& message) {
  if (options.counter && !options.counter->add(message, where)) return;
  if (options.log) say_warning(str("ignore_errors left out an element: ", message));
}

}  // namespace

StagePtr make_filter(StagePtr input, Predicate predicate) {
  return make_stage(
      {std::move(input)},
      {.kind = "filter",
       .traits = {.source = StageTraits::Source::Inputs, .elements = StageTraits::Elements::Filtered},
       .cardinality = unknown_unless_empty,
       .iterate = by_function([wants = std::move(predicate)](ElementIterator& elements, Element& element) {
         while (elements.next(element))
           if (call_for_stage("filter", [&] { return wants(element); })) return true;
         return false;
       })});
}

StagePtr make_take_while(StagePtr input, Predicate predicate) {
  const auto next = [wants = std::move(predicate), ended = false](ElementIterator& elements, Element& element) mutable {
    ended = ended || !elements.next(element) || !call_for_stage("take_while", [&] { return wants(element); });
    return !ended;
  };
  return make_stage({std::move(input)},
                    {.kind = "take_while", .cardinality = unknown_cardinality, .iterate = by_function(next)});
}

StagePtr make_distinct(StagePtr input) {
  const auto next = [seen = std::unordered_set<std::string>()](ElementIterator& elements, Element& element) mutable {
    while (elements.next(element))
      if (seen.insert(to_bytes(element, "unique")).second) return true;
    return false;
  };
  return make_stage({std::move(input)},
                    {.kind = "unique", .cardinality = unknown_cardinality, .iterate = by_function(next)});
}

std::string ErrorCounter::last_message() const {
  const std::lock_guard lock(mutex_);
  return last_message_;
}
bool ErrorCounter::add(const std::string& message, const Where& where) {
  constexpr std::size_t kPasses = 1024;
  const std::lock_guard lock(mutex_);
  const auto [pass, is_new] = last_places_.try_emplace(where.pass, 0);
  if (is_new) passes_.push_back(where.pass);
  if (where.is_resumed && where.place <= pass->second) return false;
  pass->second = where.place;
  if (passes_.size() > kPasses) {
    last_places_.erase(passes_.front());
    passes_.pop_front();
  }
  last_message_ = message;
  count_.fetch_add(1);
  return true;
}

StagePtr make_ignore_errors(StagePtr input, IgnoreErrorsOptions options) {
  const auto next = [options](ElementIterator& elements, ErrorCounter::Where& where, Element& element) {
    for (std::int64_t errors = 1;; ++errors) {
      ++where.place;
      try {
        return elements.next(element);
      } catch (const std::exception& error) {
        rethrow_if_fatal(std::current_exception());
        note(options, where, error.what());
        if (errors >= options.give_up_after) throw;
      } catch (...) {
        note(options, where, "an exception that is not a std::exception");
        if (errors >= options.give_up_after) throw;
      }
    }
  };
  return make_stage(
      {std::move(input)},
      {.kind = "ignore_errors",
       .cardinality =
           [](const Stage& below) {
             return below.cardinality().is_infinite() ? below.cardinality() : unknown_unless_empty(below);
           },
       .iterate =
           [next](const Stage& below, const IterationContext& context) {
             // Several stages of one pipeline may share a counter: each has its own places, the same if the pipeline is
             // rebuilt.
             const auto others = static_cast<std::uint64_t>(count_stages(below, "ignore_errors"));
             const ErrorCounter::Where start{.pass = mix(context.pass_key(), others), .is_resumed = context.is_resumed};
             return make_function_iterator([next, elements = below.iterate(context), where = start](
                                               Element& element) mutable { return next(*elements, where, element); });
           }});
}

}  // namespace lockstep::data
