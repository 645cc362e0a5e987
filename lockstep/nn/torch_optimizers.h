#pragma once

#include <array>
#include <cstddef>

#include "lockstep/base/function_ref.h"
#include "lockstep/nn/optimizer_traits.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

// What is particular to LibTorch's own optimizer classes. Of any other class nothing is required here.
namespace lockstep::detail {

/// Throws InvalidArgument for option values that the class cannot work with. LibTorch checks the first group only, and
/// only when an optimizer is made; here all groups are checked, and again before each update.
void require_valid_options(std::size_t group, const torch::optim::OptimizerOptions& options);

/// Every option by its name. Of a class that is not LibTorch's own, the learning rate alone.
void for_each_option(const torch::optim::OptimizerOptions& options,
                     FunctionRef<void(const char* name, double value)> see);

/// Gives each of the same options the value of its name.
void set_options(torch::optim::OptimizerOptions& options, FunctionRef<double(const char* name)> value_of);

/// Why this optimizer cannot take sparse gradients ("Adam"); null if it can. LibTorch finds out in the middle of an
/// update.
const char* why_not_sparse(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options);

/// Whether the class adds what it remembers of a parameter to the gradient itself, so that a sparse gradient needs a
/// sparse state: SGD with Nesterov momentum.
bool adds_state_to_gradient(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options);

/// Whether it is one whole number >= 0, of any type: Python's optimizers keep their numbers of steps as floats.
bool is_count(const at::Tensor& tensor);

/// Keys of a parameter's state that the class keeps only if an option asks for them; null where there is none.
using OptionalState = std::array<const char*, 2>;
OptionalState optional_state(const torch::optim::OptimizerOptions& options);

/// What the class takes for granted once a parameter has a state, and `state` lacks; null if all is there.
const char* missing_state(const torch::optim::OptimizerOptions& options, const ParameterState& state);

}  // namespace lockstep::detail
