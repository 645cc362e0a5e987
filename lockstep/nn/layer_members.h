#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::detail {

/// A tensor that a layer of LibTorch computes with, and the parameter registered under its name. `layer->weight = tensor`
/// leaves the parameter behind, which is then trained and saved in its place.
struct LayerMember {
  std::string name;
  const at::Tensor* member;  ///< lives as long as its module
  const c10::TensorImpl* registered;

  bool is_registered() const { return member->unsafeGetTensorImpl() == registered; }
};

/// Weights and biases of linear layers, embeddings, convolutions and normalizations. What a program's own classes keep as
/// members cannot be seen.
std::vector<LayerMember> layer_members(const torch::nn::Module& module);

}  // namespace lockstep::detail
