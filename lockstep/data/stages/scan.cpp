#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/data/function_iterator.h"
#include "lockstep/data/one_to_one.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "lockstep/data/user_call.h"

// Stages that carry something from element to element.
namespace lockstep::data {
namespace {

class EnumerateIterator final : public CountingIterator {
 public:
  EnumerateIterator(IteratorPtr input, std::int64_t start) : CountingIterator(std::move(input)), start_(start) {}

  bool next(Element& element) override {
    if (!next_input(element)) return false;
    Element numbered = Element::of(at::scalar_tensor(start_ + count_ - 1, at::kLong));
    append(numbered, std::move(element));
    element = std::move(numbered);
    return true;
  }

 private:
  std::int64_t start_;
};

class EnumerateStage final : public StageOf<EnumerateStage, PassThroughStage> {
 public:
  EnumerateStage(StagePtr input, std::int64_t start) : StageOf(std::move(input)), start_(start) {}

  std::string_view kind() const override { return "enumerate"; }
  StageTraits traits() const override {
    return {.elements = StageTraits::Elements::Mapped, .passes_over = true, .runs_functions = false};
  }
  ElementSpec element_spec() const override {
    const ElementSpec number{{{ComponentSpec::tensor(at::kLong, PartialShape({}))}}};
    return number.joined_with(input()->element_spec());
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<EnumerateIterator>(input()->iterate(context), start_);
  }

 private:
  std::int64_t start_;
};

class ScanStage final : public StageOf<ScanStage, PassThroughStage> {
 public:
  ScanStage(StagePtr input, Element initial, ScanFunction function, ElementSpec result, SpecFunction spec)
      : StageOf(std::move(input)),
        initial_(std::move(initial)),
        function_(std::move(function)),
        result_(std::move(result)),
        spec_(std::move(spec)) {}

  std::string_view kind() const override { return "scan"; }
  StageTraits traits() const override { return {.elements = StageTraits::Elements::Mapped}; }
  ElementSpec element_spec() const override { return spec_ ? spec_(input()->element_spec()) : result_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return make_function_iterator([input = input()->iterate(context), state = own_copy(initial_),
                                   function = function_](Element& element) mutable {
      if (!input->next(element)) return false;
      const c10::AutoGradMode no_grad(false);
      call_for_stage("scan", [&] { function(state, element); });
      return true;
    });
  }

 private:
  Element initial_;
  ScanFunction function_;
  ElementSpec result_;
  SpecFunction spec_;
};

}  // namespace

StagePtr make_enumerate(StagePtr input, std::int64_t start) {
  return std::make_shared<EnumerateStage>(std::move(input), start);
}

StagePtr make_scan(StagePtr input, Element initial, ScanFunction function, ElementSpec result, SpecFunction spec) {
  return std::make_shared<ScanStage>(std::move(input), std::move(initial), std::move(function), std::move(result),
                                     std::move(spec));
}

}  // namespace lockstep::data
