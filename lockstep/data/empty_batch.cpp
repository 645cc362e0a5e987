#include "lockstep/data/empty_batch.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace lockstep::data {
namespace {

Component empty_component(const ComponentSpec& spec) {
  // Dimensions that are not known are 0, and so is the first one; a scalar stays a scalar (a zero).
  std::vector<std::int64_t> shape = spec.shape.dims();
  std::ranges::replace(shape, PartialShape::kUnknown, 0);
  if (!shape.empty()) shape.front() = 0;
  if (spec.kind == ComponentSpec::Kind::Bytes) {
    if (shape.empty()) return std::string();
    return Strings();
  }
  return at::zeros(
      shape,
      at::TensorOptions().dtype(spec.dtype.value_or(at::kFloat)).layout(spec.is_sparse ? at::kSparse : at::kStrided));
}

}  // namespace

Element empty_batch(const ElementSpec& spec, const Element& seen) {
  if (!tells_all(spec)) return own_copy(seen);
  Element empty;
  empty.skeleton = spec.skeleton;
  for (const ComponentSpec& component : *spec.components) empty.components.push_back(empty_component(component));
  return empty;
}

Element without_rows(const Element& element) {
  return element.mapped([](const Component& component) -> Component {
    if (std::holds_alternative<Strings>(component)) return Strings();
    const auto* tensor = std::get_if<at::Tensor>(&component);
    if (tensor == nullptr) return std::string();
    if (!tensor->defined()) return at::Tensor();
    std::vector<std::int64_t> sizes = tensor->sizes().vec();
    if (!sizes.empty()) sizes.front() = 0;
    return at::zeros(sizes, tensor->options());
  });
}

bool tells_all(const ElementSpec& spec) {
  return spec.components && std::ranges::none_of(*spec.components, [](const ComponentSpec& component) {
           return component.kind == ComponentSpec::Kind::Unknown || !component.shape.has_rank() ||
                  (component.kind == ComponentSpec::Kind::Tensor && !component.dtype);
         });
}

}  // namespace lockstep::data
