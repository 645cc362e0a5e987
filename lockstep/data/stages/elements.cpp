#include "lockstep/data/stages/elements.h"

#include <algorithm>

#include "lockstep/base/text.h"

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

class ElementsStage final : public StageOf<ElementsStage> {
 public:
  ElementsStage(std::string kind, std::vector<Element> elements, ElementSpec spec)
      : kind_(std::move(kind)),
        elements_(std::make_shared<const std::vector<Element>>(std::move(elements))),
        spec_(std::move(spec)) {}

  std::string_view kind() const override { return kind_; }
  std::string describe() const override { return str(kind_, "(", to_string(spec_), ")"); }
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Memory, .passes_over = true, .runs_functions = false};
  }
  Cardinality cardinality() const override { return static_cast<std::int64_t>(elements_->size()); }
  ElementSpec element_spec() const override { return spec_; }

 protected:
  IteratorPtr make_iterator(const IterationContext&) const override { return iterate_elements(elements_); }

 private:
  std::string kind_;
  std::shared_ptr<const std::vector<Element>> elements_;
  ElementSpec spec_;
};

}  // namespace

IteratorPtr iterate_elements(std::shared_ptr<const std::vector<Element>> elements) {
  return std::make_unique<ElementsIterator>(std::move(elements));
}

StagePtr make_elements(std::string kind, std::vector<Element> elements, ElementSpec spec) {
  return std::make_shared<ElementsStage>(std::move(kind), std::move(elements), std::move(spec));
}

}  // namespace lockstep::data
