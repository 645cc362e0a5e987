#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stages/stages.h"
#include "lockstep/data/user_call.h"

namespace lockstep::data {
namespace {

class FilterIterator final : public ElementIterator {
 public:
  FilterIterator(IteratorPtr input, Predicate predicate) : input_(std::move(input)), predicate_(std::move(predicate)) {}

  bool next(Element& element) override {
    while (input_->next(element))
      if (call_for_stage("filter", [&] { return predicate_(element); })) return true;
    return false;
  }

 private:
  IteratorPtr input_;
  Predicate predicate_;
};

class TakeWhileIterator final : public ElementIterator {
 public:
  TakeWhileIterator(IteratorPtr input, Predicate predicate)
      : input_(std::move(input)), predicate_(std::move(predicate)) {}

  bool next(Element& element) override {
    ended_ = ended_ || !input_->next(element) || !call_for_stage("take_while", [&] { return predicate_(element); });
    return !ended_;
  }

 private:
  IteratorPtr input_;
  Predicate predicate_;
  bool ended_ = false;
};

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

class UniqueIterator final : public ElementIterator {
 public:
  explicit UniqueIterator(IteratorPtr input) : input_(std::move(input)) {}

  bool next(Element& element) override {
    while (input_->next(element))
      if (seen_.insert(contents(element)).second) return true;
    return false;
  }

 private:
  IteratorPtr input_;
  std::unordered_set<std::string> seen_;
};

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
    return std::make_unique<FilterIterator>(input()->iterate(context), predicate_);
  }
};

class TakeWhileStage final : public StageOf<TakeWhileStage, ChoosingStage> {
 public:
  using StageOf::StageOf;

  std::string_view kind() const override { return "take_while"; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<TakeWhileIterator>(input()->iterate(context), predicate_);
  }
};

class UniqueStage final : public StageOf<UniqueStage, ChoosingStage> {
 public:
  using StageOf::StageOf;

  std::string_view kind() const override { return "unique"; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<UniqueIterator>(input()->iterate(context));
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
