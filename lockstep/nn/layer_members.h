#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::detail {

/// A tensor member of a LibTorch layer, and the parameter registered under its name. `layer->weight = tensor` replaces
/// only the member; the old parameter would be trained and saved instead.
struct LayerMember {
  std::string name;
  const at::Tensor* member;  ///< lives as long as its module
  const c10::TensorImpl* registered;

  bool is_registered() const { return member->unsafeGetTensorImpl() == registered; }
};

/// Weights and biases of linear layers, embeddings, convolutions and normalizations. Members of a program's own classes
/// cannot be found.
std::vector<LayerMember> layer_members(const torch::nn::Module& module);

}  // namespace lockstep::detail
