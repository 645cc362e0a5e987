#pragma once

#include <array>
#include <cstddef>

#include "lockstep/base/function_ref.h"
#include "lockstep/nn/optimizer_traits.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

// Details of LibTorch's own optimizer classes. Nothing here applies to other classes.
namespace lockstep::detail {

/// Throws InvalidArgument for invalid option values of the class. LibTorch checks only the first group, and only when
/// an optimizer is made; here all groups are checked, and again before each update.
void require_valid_options(std::size_t group, const torch::optim::OptimizerOptions& options);

/// Every option by its name. For a class that is not LibTorch's own, only the learning rate.
void for_each_option(const torch::optim::OptimizerOptions& options,
                     FunctionRef<void(const char* name, double value)> see);

/// Sets each option to the value of its name.
void set_options(torch::optim::OptimizerOptions& options, FunctionRef<double(const char* name)> value_of);

/// Why this optimizer cannot take sparse gradients ("Adam"); null if it can. LibTorch fails in the middle of an update.
const char* why_not_sparse(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options);

/// Whether the class adds a parameter's state to the gradient itself, so that a sparse gradient needs a sparse state:
/// SGD with Nesterov momentum.
bool adds_state_to_gradient(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options);

/// Whether it is one whole number >= 0, of any type: Python's optimizers keep their numbers of steps as floats.
bool is_count(const at::Tensor& tensor);

/// Keys of a parameter's state that the class keeps only if an option asks for them; null if there are fewer.
using OptionalState = std::array<const char*, 2>;
OptionalState optional_state(const torch::optim::OptimizerOptions& options);

/// A key that the class assumes to exist once a parameter has a state, but `state` lacks; null if complete.
const char* missing_state(const torch::optim::OptimizerOptions& options, const ParameterState& state);

}  // namespace lockstep::detail
