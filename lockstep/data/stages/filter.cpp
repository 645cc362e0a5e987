#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/function_iterator.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "lockstep/data/user_call.h"

namespace lockstep::data {
namespace {

/// The contents of an element as bytes: equal exactly for equal elements.
std::string contents(const Element& element) {
  std::string bytes;
  if (element.skeleton) {
    bytes += str(element.skeleton->marks.size(), ';');
    for (const auto& mark : element.skeleton->marks) {
      if (const auto* key = std::get_if<std::string>(&mark)) {
        bytes += str(key->size(), ':', *key);
      } else {
        bytes += str(std::get<std::int64_t>(mark), ';');
      }
    }
  }
  for (const Component& component : element.components) {
    bytes += to_string(ComponentSpec::of(component));
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      const at::Tensor plain = values_in_order(*tensor, element, "unique");
      bytes.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
    } else if (const auto* text = std::get_if<std::string>(&component)) {
      bytes += str(text->size(), ':', *text);
    } else if (const auto* strings = std::get_if<Strings>(&component)) {
      for (const std::string& each : *strings) bytes += str(each.size(), ':', each);
    } else {
      throw InvalidArgument(errors::kStructure,
                            {.what = "datasets within elements cannot be compared",
                             .where = "unique",
                             .help = "call unique before window, or on the elements of a flat_map"});
    }
  }
  return bytes;
}

/// What the stages here share: their elements are some of their input's.
class ChoosingStage : public PassThroughStage {
 public:
  ChoosingStage(StagePtr input, Predicate predicate)
      : PassThroughStage(std::move(input)), predicate_(std::move(predicate)) {}
  Cardinality cardinality() const override { return Cardinality::unknown(); }

 protected:
  Predicate predicate_;
};

class FilterStage final : public StageOf<FilterStage, ChoosingStage> {
 public:
  using StageOf::StageOf;

  std::string_view kind() const override { return "filter"; }
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Inputs, .elements = StageTraits::Elements::Filtered};
  }
  Cardinality cardinality() const override {
    return input()->cardinality() == Cardinality(0) ? Cardinality(0) : Cardinality::unknown();
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return make_function_iterator([input = input()->iterate(context), wants = predicate_](Element& element) {
      while (input->next(element))
        if (call_for_stage("filter", [&] { return wants(element); })) return true;
      return false;
    });
  }
};

class TakeWhileStage final : public StageOf<TakeWhileStage, ChoosingStage> {
 public:
  using StageOf::StageOf;

  std::string_view kind() const override { return "take_while"; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return make_function_iterator(
        [input = input()->iterate(context), wants = predicate_, ended = false](Element& element) mutable {
          ended = ended || !input->next(element) || !call_for_stage("take_while", [&] { return wants(element); });
          return !ended;
        });
  }
};

class UniqueStage final : public StageOf<UniqueStage, ChoosingStage> {
 public:
  using StageOf::StageOf;

  std::string_view kind() const override { return "unique"; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return make_function_iterator(
        [input = input()->iterate(context), seen = std::unordered_set<std::string>()](Element& element) mutable {
          while (input->next(element))
            if (seen.insert(contents(element)).second) return true;
          return false;
        });
  }
};

}  // namespace

StagePtr make_filter(StagePtr input, Predicate predicate) {
  return std::make_shared<FilterStage>(std::move(input), std::move(predicate));
}
StagePtr make_take_while(StagePtr input, Predicate predicate) {
  return std::make_shared<TakeWhileStage>(std::move(input), std::move(predicate));
}
StagePtr make_distinct(StagePtr input) { return std::make_shared<UniqueStage>(std::move(input), nullptr); }

}  // namespace lockstep::data
