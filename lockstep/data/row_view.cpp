#include "lockstep/data/row_view.h"

#include "lockstep/data/own_tensor.h"

namespace lockstep::data {

void row_view(const Element& batch, std::int64_t i, Element& element) {
  element.skeleton = batch.skeleton;
  element.components.clear();
  for (const Component& component : batch.components) {
    if (const auto* tensor = std::get_if<at::Tensor>(&component))
      element.components.emplace_back(own_row(*tensor, i));
    else
      element.components.emplace_back(std::get<Strings>(component)[i]);
  }
}

}  // namespace lockstep::data
