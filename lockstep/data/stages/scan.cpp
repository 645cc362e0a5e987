#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/data/iterators.h"
#include "lockstep/data/stages/stages.h"

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

}  // namespace

StagePtr make_enumerate(StagePtr input, std::int64_t start) {
  return make_stage(
      {std::move(input)},
      {.kind = "enumerate",
       .traits = {.elements = StageTraits::Elements::Mapped, .passes_over = true, .runs_functions = false},
       .spec =
           [](const Stage& below) {
             const ElementSpec number{{{ComponentSpec::tensor(at::kLong, PartialShape({}))}}};
             return number.joined_with(below.element_spec());
           },
       .iterate = over_input<EnumerateIterator>(start)});
}

StagePtr make_scan(StagePtr input, Element initial, ScanFunction function, ElementSpec result, SpecFunction spec) {
  return make_stage({std::move(input)},
                    {.kind = "scan",
                     .traits = {.elements = StageTraits::Elements::Mapped},
                     .spec = [result = std::move(result), spec = std::move(spec)](
                                 const Stage& below) { return spec ? spec(below.element_spec()) : result; },
                     .iterate =
                         [initial = std::move(initial), function = std::move(function)](
                             const Stage& below, const IterationContext& context) {
                           return make_function_iterator([elements = below.iterate(context), state = own_copy(initial),
                                                          function](Element& element) mutable {
                             if (!elements->next(element)) return false;
                             const c10::AutoGradMode no_grad(false);
                             call_for_stage("scan", [&] { function(state, element); });
                             return true;
                           });
                         }});
}

}  // namespace lockstep::data
