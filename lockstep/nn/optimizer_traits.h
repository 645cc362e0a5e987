#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "lockstep/base/export.h"

// Traits of optimizer classes. LibTorch's own are covered; specialise these templates for your class.

namespace torch::optim {
class Adagrad;
struct AdagradOptions;
class Adam;
struct AdamOptions;
class AdamW;
struct AdamWOptions;
class RMSprop;
struct RMSpropOptions;
class SGD;
struct SGDOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace lockstep {

/// Whether the update of an element depends on that element only. Parameters of such optimizers are cut into shards;
/// any other class gets whole parameters, dealt to the replicas in turn.
template <class Opt>
inline constexpr bool is_elementwise_v = false;
template <>
inline constexpr bool is_elementwise_v<torch::optim::SGD> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::Adam> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::AdamW> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::RMSprop> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::Adagrad> = true;

/// The class of an optimizer's options: the type of `optimizer.options()`, also constructed from a bare learning rate.
/// Known for LibTorch's classes and classes derived from them.
template <class Opt>
struct OptimizerOptionsOf {};
template <class Opt>
  requires std::is_base_of_v<torch::optim::SGD, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::SGDOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::Adam, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::AdamOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::AdamW, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::AdamWOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::RMSprop, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::RMSpropOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::Adagrad, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::AdagradOptions> {
};

/// An optimizer's state of a parameter: "exp_avg" -> tensor of the parameter's shape, "step" -> a number; empty before
/// the first step.
using ParameterState = std::map<std::string, at::Tensor>;
/// By parameter name; state of no parameter is under the empty name: "steps", the number of updates so far.
using OptimizerState = std::map<std::string, ParameterState>;

namespace detail {

[[noreturn]] LOCKSTEP_EXPORT void throw_unknown_state();

}  // namespace detail

/// How to read and write the state of an optimizer class as named tensors. Specialise it to make your own optimizer
/// savable. The optional `kKeptByElement` names state with an entry per element of the parameter: a single number there
/// is an error.
template <class Opt>
struct OptimizerStateTraits {
  static constexpr bool kIsUnknown = true;  ///< true only here, in the case of no specialisation
  /// Reads and writes the state that the optimizer keeps for one parameter.
  static ParameterState read(const torch::optim::OptimizerParamState&) { detail::throw_unknown_state(); }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState&) {
    detail::throw_unknown_state();
  }
};
template <>
struct LOCKSTEP_EXPORT OptimizerStateTraits<torch::optim::SGD> {
  static constexpr std::array<std::string_view, 1> kKeptByElement{"momentum_buffer"};
  static ParameterState read(const torch::optim::OptimizerParamState& state);
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values);
};
template <>
struct LOCKSTEP_EXPORT OptimizerStateTraits<torch::optim::Adam> {
  static constexpr std::array<std::string_view, 3> kKeptByElement{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static ParameterState read(const torch::optim::OptimizerParamState& state);
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values);
};
template <>
struct LOCKSTEP_EXPORT OptimizerStateTraits<torch::optim::AdamW> {
  static constexpr std::array<std::string_view, 3> kKeptByElement{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static ParameterState read(const torch::optim::OptimizerParamState& state);
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values);
};
template <>
struct LOCKSTEP_EXPORT OptimizerStateTraits<torch::optim::RMSprop> {
  static constexpr std::array<std::string_view, 3> kKeptByElement{"square_avg", "momentum_buffer", "grad_avg"};
  static ParameterState read(const torch::optim::OptimizerParamState& state);
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values);
};
template <>
struct LOCKSTEP_EXPORT OptimizerStateTraits<torch::optim::Adagrad> {
  static constexpr std::array<std::string_view, 1> kKeptByElement{"sum"};
  static ParameterState read(const torch::optim::OptimizerParamState& state);
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values);
};

}  // namespace lockstep
