#include "lockstep/nn/layer_members.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace lockstep::detail {
namespace {

/// Finds the members of one layer.
class Members {
 public:
  Members(const torch::nn::Module& part, std::string prefix, std::vector<LayerMember>& found)
      : part_(part), prefix_(std::move(prefix)), found_(found) {}

  /// Adds the members if it is one of these.
  template <class... Layers>
  void add_of() {
    (void)(add_if<Layers>() || ...);
  }

 private:
  template <class Layer>
  bool add_if() {
    const auto* const layer = part_.as<Layer>();
    if (layer == nullptr) return false;
    add("weight", layer->weight);
    if constexpr (requires { layer->bias; }) add("bias", layer->bias);
    return true;
  }

  void add(const char* name, const at::Tensor& member) {
    const auto registered = part_.named_parameters(/*recurse=*/false);
    if (const at::Tensor* const tensor = registered.find(name))
      found_.push_back({prefix_ + name, &member, tensor->unsafeGetTensorImpl()});
  }

  const torch::nn::Module& part_;
  std::string prefix_;
  std::vector<LayerMember>& found_;
};

}  // namespace

std::vector<LayerMember> layer_members(const torch::nn::Module& module) {
  using namespace torch::nn;
  std::vector<LayerMember> found;
  for (const auto& part : module.named_modules()) {
    Members(*part.value(), part.key().empty() ? "" : part.key() + ".", found)
        .add_of<LinearImpl, EmbeddingImpl, EmbeddingBagImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
                ConvTranspose2dImpl, ConvTranspose3dImpl, BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl,
                LayerNormImpl, GroupNormImpl>();
  }
  return found;
}

}  // namespace lockstep::detail
