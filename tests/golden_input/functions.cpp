#include "tests/golden_input/functions.h"
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/text.h"

namespace lockstep::golden_input {
namespace {

using data::ComponentSpec;
using data::Element;
using data::ElementSpec;
using data::PartialShape;

/// A function of the first component that returns one tensor.
template <class F>
std::function<void(Element&)> on_tensor(F f) {
  return [f](Element& element) { element = Element::of(f(element.tensor(0))); };
}

ElementSpec same(const ElementSpec& spec) { return spec; }

/// The spec of the first component with another shape.
template <class F>
std::function<ElementSpec(const ElementSpec&)> reshaped(F f) {
  return [f](const ElementSpec& spec) {
    const ComponentSpec& component = spec.components->at(0);
    return ElementSpec{{{ComponentSpec{component.kind, component.dtype, f(component.shape)}}}};
  };
}

std::function<ElementSpec(const ElementSpec&)> stacked(std::int64_t size) {
  return reshaped([size](const PartialShape& shape) { return shape.with_front(size); });
}

/// Two components, both computed from the first one.
template <class F, class S>
NamedFunction pair_with(F second, S second_shape) {
  return {[second](Element& element) {
            const at::Tensor x = element.tensor(0);
            element = Element({x, second(x)});
          },
          [second_shape](const ElementSpec& spec) {
            ComponentSpec first = spec.components->at(0), other = first;
            other.shape = second_shape(first.shape);
            return ElementSpec{{{first, other}}};
          }};
}

/// One text, or a batch of them.
void parse_numbers(Element& element) {
  if (const auto* texts = std::get_if<data::Strings>(&element.components.at(0))) {
    at::Tensor numbers = at::empty({texts->size()}, at::kLong);
    for (std::int64_t i = 0; i < texts->size(); ++i) numbers[i] = static_cast<std::int64_t>(std::stoll((*texts)[i]));
    element = Element::of(numbers);
  } else {
    element = Element::of(at::scalar_tensor(static_cast<std::int64_t>(std::stoll(element.bytes(0))), at::kLong));
  }
}

PartialShape keep(const PartialShape& shape) { return shape; }

PartialShape with_rows(const PartialShape& shape, std::int64_t (*f)(std::int64_t)) {
  if (!shape.has_rank() || shape.dim(0) < 0) return shape;
  return shape.with_dim0(f(shape.dim(0)));
}

}  // namespace

NamedFunction map_function(const std::string& name) {
  if (name == "identity") return {[](Element&) {}, same};
  if (name == "square") return {on_tensor([](const at::Tensor& x) { return x * x; }), same};
  if (name == "negate") return {on_tensor([](const at::Tensor& x) { return -x; }), same};
  if (name == "plus_one") return {on_tensor([](const at::Tensor& x) { return x + 1; }), same};
  if (name == "times10") return {on_tensor([](const at::Tensor& x) { return x * 10; }), same};
  if (name == "to_float") {
    return {on_tensor([](const at::Tensor& x) { return x.to(at::kFloat); }), [](const ElementSpec& spec) {
              return ElementSpec{{{ComponentSpec::tensor(at::kFloat, spec.components->at(0).shape)}}};
            }};
  }
  if (name == "pair_square") return pair_with([](const at::Tensor& x) { return x * x; }, keep);
  if (name == "dict") return pair_with([](const at::Tensor& x) { return x * 10; }, keep);
  if (name == "pair_vector") {
    return pair_with(
        [](const at::Tensor& x) {
          return at::stack({x, x + 1, x + 2});
        },
        [](const PartialShape& shape) { return shape.with_front(3); });
  }
  if (name == "with_sum") {
    return pair_with([](const at::Tensor& x) { return x.sum(); },
                     [](const PartialShape&) { return PartialShape(std::vector<std::int64_t>{}); });
  }
  if (name == "zeros3_and_square") {
    return {[](Element& element) {
              const at::Tensor x = element.tensor(0);
              element = Element({at::zeros({3}, at::kLong), x * x});
            },
            [](const ElementSpec& spec) {
              return ElementSpec{{{ComponentSpec::tensor(at::kLong, {3}), spec.components->at(0)}}};
            }};
  }
  if (name == "vector3") return {on_tensor([](const at::Tensor& x) { return at::stack({x, x, x}); }), stacked(3)};
  if (name == "vector4") {
    return {on_tensor([](const at::Tensor& x) { return at::stack({x, x + 100, x + 200, x + 300}); }), stacked(4)};
  }
  if (name == "drop_first") {
    return {on_tensor([](const at::Tensor& x) { return x.slice(0, 1); }), reshaped([](const PartialShape& shape) {
              return with_rows(shape, [](std::int64_t rows) { return std::max<std::int64_t>(rows - 1, 0); });
            })};
  }
  if (name == "twice") {
    return {on_tensor([](const at::Tensor& x) {
              return at::cat({x, x});
            }),
            reshaped([](const PartialShape& shape) {
              return with_rows(shape, [](std::int64_t rows) { return 2 * rows; });
            })};
  }
  if (name == "reverse") return {on_tensor([](const at::Tensor& x) { return x.flip(0); }), same};
  if (name == "sum") {
    return {on_tensor([](const at::Tensor& x) { return x.sum(); }),
            reshaped([](const PartialShape&) { return PartialShape(std::vector<std::int64_t>{}); })};
  }
  if (name == "count_vector") {
    return {on_tensor([](const at::Tensor& x) { return at::full({x.item().toLong()}, x.item().toLong(), at::kLong); }),
            reshaped([](const PartialShape&) { return PartialShape{-1}; })};
  }
  if (name == "parse") {
    return {parse_numbers, [](const ElementSpec& spec) {
              return ElementSpec{{{ComponentSpec::tensor(at::kLong, spec.components->at(0).shape)}}};
            }};
  }
  if (name == "first") {
    return {[](Element& element) { element.components.resize(1); },
            [](const ElementSpec& spec) { return ElementSpec{{{spec.components->at(0)}}}; }};
  }
  if (name == "add") {
    return {[](Element& element) { element = Element::of(element.tensor(0) + element.tensor(1)); },
            [](const ElementSpec& spec) { return ElementSpec{{{spec.components->at(0)}}}; }};
  }
  golden::unknown_value("map function", name);
}

NamedFunction add_constant(std::int64_t value) {
  return {on_tensor([value](const at::Tensor& x) { return x + value; }), same};
}

NamedFunction multiply_by(std::int64_t value) {
  return {on_tensor([value](const at::Tensor& x) { return x * value; }), same};
}

std::function<bool(const Element&)> predicate(const std::string& name, std::int64_t number) {
  if (name == "even") return [](const Element& element) { return scalar_of(element) % 2 == 0; };
  if (name == "odd") return [](const Element& element) { return scalar_of(element) % 2 != 0; };
  if (name == "all") return [](const Element&) { return true; };
  if (name == "none") return [](const Element&) { return false; };
  if (name == "full") return [number](const Element& element) { return element.tensor(0).size(0) == number; };
  if (name == "lt") return [number](const Element& element) { return scalar_of(element) < number; };
  golden::unknown_value("predicate", name);
}

std::int64_t scalar_of(const Element& element) { return element.tensor(0).item().toLong(); }

ElementSpec int64_spec(std::vector<std::int64_t> shape) {
  return ElementSpec{{{ComponentSpec::tensor(at::kLong, PartialShape(std::move(shape)))}}};
}

}  // namespace lockstep::golden_input
