#include "lockstep/data/stages/elements.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/stages/described_stage.h"

namespace lockstep::data {
namespace {

class ElementsIterator final : public ElementIterator {
 public:
  explicit ElementsIterator(std::shared_ptr<const std::vector<Element>> elements) : elements_(std::move(elements)) {}

  bool next(Element& element) override {
    if (at_ == elements_->size()) return false;
    element = own_copy((*elements_)[at_++]);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, static_cast<std::int64_t>(elements_->size() - at_));
    at_ += static_cast<std::size_t>(skipped);
    return skipped;
  }

 private:
  std::shared_ptr<const std::vector<Element>> elements_;
  std::size_t at_ = 0;
};

}  // namespace

IteratorPtr iterate_elements(std::shared_ptr<const std::vector<Element>> elements) {
  return std::make_unique<ElementsIterator>(std::move(elements));
}

StagePtr make_elements(std::string kind, std::vector<Element> elements, ElementSpec spec) {
  std::string text = str(kind, "(", to_string(spec), ")");
  return make_stage({},
                    {.kind = std::move(kind),
                     .text = std::move(text),
                     .traits = {.source = StageTraits::Source::Memory, .passes_over = true, .runs_functions = false},
                     .cardinality = [count = std::ssize(elements)](const Stage&) { return Cardinality(count); },
                     .spec = [spec = std::move(spec)](const Stage&) { return spec; },
                     .iterate = [all = std::make_shared<const std::vector<Element>>(std::move(elements))](
                                    const Stage&, const IterationContext&) { return iterate_elements(all); }});
}

}  // namespace lockstep::data
