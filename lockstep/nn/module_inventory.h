#pragma once

#include <torch/ordered_dict.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/layer_members.h"
#include "lockstep/nn/module_core.h"

namespace lockstep::detail {

/// The contents of the replicas' modules as made. Separate from module_core.h, which every program compiles.
struct ModuleCore::Inventory {
  std::vector<torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>> parts;  ///< per replica, by name
  std::vector<std::vector<LayerMember>> members;                                           ///< per replica
  std::vector<Parameter> parameters;
  std::vector<char> is_pinned;                                   ///< per parameter
  std::shared_ptr<const void> alive = std::make_shared<char>();  ///< expires with the model
  /// Digests from when buffers were last equal on all replicas; none unless one client drives several workers.
  BufferDigests equal_buffers;
};

}  // namespace lockstep::detail
