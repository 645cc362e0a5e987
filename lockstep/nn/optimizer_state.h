#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/nn/parameter_state.h"

// What an optimizer remembers about a parameter, as named tensors: readable, and independent of how parameters are
// shared out among replicas. For checkpoints.
namespace lockstep {

namespace detail {

LOCKSTEP_EXPORT at::Tensor number_tensor(std::int64_t value);
LOCKSTEP_EXPORT std::int64_t number_of(const ParameterState& state, const char* key);
LOCKSTEP_EXPORT at::Tensor tensor_of(const ParameterState& state, const char* key);  ///< undefined if absent

}  // namespace detail

/// How to read and write one class's state. Specialise it for an optimizer of your own to make its state savable.
template <class Opt>
struct OptimizerStateTraits {
  static constexpr bool kIsUnknown = true;
  static ParameterState read(const torch::optim::OptimizerParamState&) { refuse(); }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState&) { refuse(); }
  [[noreturn]] static void refuse() {
    throw Unimplemented(errors::kOptimizer, {.what = "Lockstep does not know the state of this optimizer class",
                                             .help = "specialise lockstep::OptimizerStateTraits for it"});
  }
};

namespace detail {

/// Adam and AdamW remember the same things.
template <class State>
struct AdamStateTraits {
  static ParameterState read(const torch::optim::OptimizerParamState& any) {
    const auto& state = static_cast<const State&>(any);
    ParameterState result{
        {"step", number_tensor(state.step())}, {"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
    if (state.max_exp_avg_sq().defined()) result["max_exp_avg_sq"] = state.max_exp_avg_sq();
    return result;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values) {
    auto state = std::make_unique<State>();
    state->step(number_of(values, "step"));
    state->exp_avg(tensor_of(values, "exp_avg"));
    state->exp_avg_sq(tensor_of(values, "exp_avg_sq"));
    state->max_exp_avg_sq(tensor_of(values, "max_exp_avg_sq"));
    return state;
  }
};

}  // namespace detail

template <>
struct OptimizerStateTraits<torch::optim::Adam> : detail::AdamStateTraits<torch::optim::AdamParamState> {};
template <>
struct OptimizerStateTraits<torch::optim::AdamW> : detail::AdamStateTraits<torch::optim::AdamWParamState> {};

template <>
struct OptimizerStateTraits<torch::optim::SGD> {
  static ParameterState read(const torch::optim::OptimizerParamState& any) {
    const auto& state = static_cast<const torch::optim::SGDParamState&>(any);
    return state.momentum_buffer().defined() ? ParameterState{{"momentum_buffer", state.momentum_buffer()}}
                                             : ParameterState{};
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values) {
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(detail::tensor_of(values, "momentum_buffer"));
    return state;
  }
};

template <>
struct OptimizerStateTraits<torch::optim::RMSprop> {
  static ParameterState read(const torch::optim::OptimizerParamState& any) {
    const auto& state = static_cast<const torch::optim::RMSpropParamState&>(any);
    ParameterState result{{"step", detail::number_tensor(state.step())}, {"square_avg", state.square_avg()}};
    if (state.momentum_buffer().defined()) result["momentum_buffer"] = state.momentum_buffer();
    if (state.grad_avg().defined()) result["grad_avg"] = state.grad_avg();
    return result;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values) {
    auto state = std::make_unique<torch::optim::RMSpropParamState>();
    state->step(detail::number_of(values, "step"));
    state->square_avg(detail::tensor_of(values, "square_avg"));
    state->momentum_buffer(detail::tensor_of(values, "momentum_buffer"));
    state->grad_avg(detail::tensor_of(values, "grad_avg"));
    return state;
  }
};

template <>
struct OptimizerStateTraits<torch::optim::Adagrad> {
  static ParameterState read(const torch::optim::OptimizerParamState& any) {
    const auto& state = static_cast<const torch::optim::AdagradParamState&>(any);
    return {{"step", detail::number_tensor(state.step())}, {"sum", state.sum()}};
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values) {
    auto state = std::make_unique<torch::optim::AdagradParamState>();
    state->step(detail::number_of(values, "step"));
    state->sum(detail::tensor_of(values, "sum"));
    return state;
  }
};

class OptimizerCore;

namespace detail {

template <class Opt>
constexpr StateAccess state_access_of() {
  using Traits = OptimizerStateTraits<Opt>;
  constexpr bool is_unknown = requires { Traits::kIsUnknown; };
  return {.read = &Traits::read, .write = &Traits::write, .known = !is_unknown};
}

/// Puts the segments' states together, parameter by parameter; and takes them apart again.
LOCKSTEP_EXPORT OptimizerState read_state(OptimizerCore& core);
LOCKSTEP_EXPORT void write_state(OptimizerCore& core, const OptimizerState& state);
/// The same for one parameter, by its index.
ParameterState gather_state(OptimizerCore& core, int parameter);

}  // namespace detail

}  // namespace lockstep
