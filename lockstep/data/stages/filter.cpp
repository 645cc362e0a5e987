#include <unordered_set>

#include "lockstep/data/element_bytes.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/stages/stages.h"

// Stages whose elements are some of their input's.
namespace lockstep::data {
namespace {

Cardinality unknown_cardinality(const Stage&) { return Cardinality::unknown(); }

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

}  // namespace lockstep::data
