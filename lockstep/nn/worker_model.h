#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

#include "lockstep/base/function_ref.h"

// What the workers that train a model together do about it. Nothing where there is one worker.
namespace lockstep {
class Strategy;
}

namespace lockstep::detail {

class ModuleCore;
struct OptimizerCore;

/// While a model is made: throws, on every worker, where their models have other parameters or buffers than the chief's, and
/// gives all of them the chief's values.
void take_chiefs_values(const ModuleCore& model);

/// The buffers of each replica of all workers, by replica id. Every worker must call it.
std::vector<torch::OrderedDict<std::string, at::Tensor>> buffers_of_all_workers(const ModuleCore& model);

/// Calls `act` on the chief alone, and returns on every worker when it has. Where it throws, all workers throw.
void do_on_chief(const Strategy& strategy, const char* what, FunctionRef<void()> act);

/// Gives all workers the chief's weights, buffers and, with an optimizer, what that remembers.
void share_chiefs_training(ModuleCore& model, OptimizerCore* optimizer);

}  // namespace lockstep::detail
