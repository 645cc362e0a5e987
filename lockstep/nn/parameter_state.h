#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>

namespace lockstep {

/// What an optimizer remembers about a parameter: "exp_avg" -> tensor of the parameter's shape, "step" -> a number;
/// empty before the first step.
using ParameterState = std::map<std::string, at::Tensor>;
/// By parameter name; what belongs to no parameter is under the empty name: "steps", the number of updates so far.
using OptimizerState = std::map<std::string, ParameterState>;

namespace detail {

using ReadState = ParameterState (*)(const torch::optim::OptimizerParamState&);
using WriteState = std::unique_ptr<torch::optim::OptimizerParamState> (*)(const ParameterState&);

/// How to look into the state of one optimizer class; see OptimizerStateTraits.
struct StateAccess {
  ReadState read = nullptr;
  WriteState write = nullptr;
  bool known = false;  ///< otherwise both throw
};

}  // namespace detail
}  // namespace lockstep
