#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

#include "lockstep/nn/optimizer_settings.h"

// Phase 1 of a step without a backward: the program passes the gradients (apply_gradients).
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

using NamedGradients = torch::OrderedDict<std::string, at::Tensor>;

/// Uses them in place of computed ones. Nothing is changed if one does not fit its parameter.
void take_gradients(const OptimizerCore& core, ReplicaPart& mine, const NamedGradients& given, GradientsOf whose);

/// Gives the gradients the names of the model's parameters, in their order. Throws if there are more or fewer.
NamedGradients with_names(const OptimizerCore& core, const std::vector<at::Tensor>& gradients);

}  // namespace lockstep::detail
