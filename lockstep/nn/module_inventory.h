#pragma once

#include <torch/ordered_dict.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/layer_members.h"
#include "lockstep/nn/module_core.h"

namespace lockstep::detail {

/// What the modules of the replicas have been made of. Apart from module_core.h, which every program compiles.
struct ModuleCore::Inventory {
  std::vector<torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>> parts;  ///< of each replica, by name
  std::vector<std::vector<LayerMember>> members;                                           ///< of each replica
  std::vector<Parameter> parameters;
  std::vector<char> is_pinned;                                   ///< per parameter
  std::shared_ptr<const void> alive = std::make_shared<char>();  ///< ends with the model
  /// When buffers were last equal on all replicas; none unless one client drives several workers.
  BufferDigests equal_buffers;
};

}  // namespace lockstep::detail
