#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

// What the workers that train a model together do about it. Nothing where there is one worker.
namespace lockstep::detail {

class ModuleCore;

/// While a model is made: throws, on every worker, where their models have other parameters or buffers than the chief's, and
/// gives all of them the chief's values.
void take_chiefs_values(const ModuleCore& model);

/// The buffers of each replica of all workers, by replica id. Every worker must call it.
std::vector<torch::OrderedDict<std::string, at::Tensor>> buffers_of_all_workers(const ModuleCore& model);

}  // namespace lockstep::detail
