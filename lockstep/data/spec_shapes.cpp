#include "lockstep/data/spec_shapes.h"

namespace lockstep::data {

std::vector<StaticShape> shapes_of(const ElementSpec& spec) {
  if (!spec.components) return {{kUnknownDim}};
  std::vector<StaticShape> shapes;
  for (const ComponentSpec& component : *spec.components) {
    shapes.push_back(component.shape.has_rank() ? component.shape.dims() : StaticShape{kUnknownDim});
  }
  return shapes;
}

ElementSpec with_rows_of(ElementSpec spec, const std::vector<StaticShape>& shapes) {
  if (!spec.components) return spec;
  for (std::size_t i = 0; i < spec.components->size(); ++i) {
    ComponentSpec& component = (*spec.components)[i];
    if (!shapes[i].empty()) component.shape = component.shape.with_dim0(shapes[i].front());
  }
  return spec;
}

}  // namespace lockstep::data
