#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/nn/fused_update.h"
#include "lockstep/nn/optimizer_traits.h"

namespace torch::optim {
class LBFGS;
}

namespace lockstep::detail {

/// Everything the library needs to know about a user's optimizer class.
struct OptimizerClass {
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  std::unique_ptr<torch::optim::Optimizer> (*make)(const Groups& groups,
                                                   const torch::optim::OptimizerOptions& defaults);
  ParameterState (*read_state)(const torch::optim::OptimizerParamState& state);
  std::unique_ptr<torch::optim::OptimizerParamState> (*write_state)(const ParameterState& values);
  bool knows_state;  ///< otherwise both throw
  /// Whether two options have the same values. Always false for classes that are not LibTorch's own.
  bool (*are_same)(const torch::optim::OptimizerOptions& a, const torch::optim::OptimizerOptions& b);
  std::span<const std::string_view> kept_by_element;  ///< keys of the state; see OptimizerStateTraits
  bool is_elementwise;                                ///< is_elementwise_v
  bool takes_gradients_once;                          ///< per step; otherwise it cannot be mirrored
  FusedUpdate fused = nullptr;                        ///< sums and updates in one pass
};

/// Options of a parameter group, and the prefixes of its parameters' names.
struct GroupRecipe {
  std::vector<std::string> prefixes;
  std::unique_ptr<torch::optim::OptimizerOptions> options;
};

template <class Traits>
constexpr std::span<const std::string_view> keys_kept_by_element() {
  if constexpr (requires { Traits::kKeptByElement; })
    return Traits::kKeptByElement;
  else
    return {};
}

/// A class derived from one of these may have additional options, which the inherited == ignores.
template <class Options>
inline constexpr bool are_options_of_libtorch_v =
    std::is_same_v<Options, torch::optim::SGDOptions> || std::is_same_v<Options, torch::optim::AdamOptions> ||
    std::is_same_v<Options, torch::optim::AdamWOptions> || std::is_same_v<Options, torch::optim::RMSpropOptions> ||
    std::is_same_v<Options, torch::optim::AdagradOptions>;

template <class Opt, class Options>
LOCKSTEP_EXPORT OptimizerClass optimizer_class_of() {
  using Traits = OptimizerStateTraits<Opt>;
  constexpr bool is_unknown = requires { Traits::kIsUnknown; };
  return {.make = [](const OptimizerClass::Groups& groups,
                     const torch::optim::OptimizerOptions& defaults) -> std::unique_ptr<torch::optim::Optimizer> {
            return std::make_unique<Opt>(groups, static_cast<const Options&>(defaults));
          },
          .read_state = &Traits::read,
          .write_state = &Traits::write,
          .knows_state = !is_unknown,
          .are_same =
              []([[maybe_unused]] const torch::optim::OptimizerOptions& a,
                 [[maybe_unused]] const torch::optim::OptimizerOptions& b) {
                if constexpr (are_options_of_libtorch_v<Options>)
                  return static_cast<const Options&>(a) == static_cast<const Options&>(b);
                else
                  return false;
              },
          .kept_by_element = keys_kept_by_element<Traits>(),
          .is_elementwise = is_elementwise_v<Opt>,
          .takes_gradients_once = !std::is_base_of_v<torch::optim::LBFGS, Opt>,
          .fused = std::is_same_v<Opt, torch::optim::SGD> ? fused_sgd_update() : nullptr};
}

// Compiled once, in torch_optimizers.cpp.
extern template OptimizerClass optimizer_class_of<torch::optim::SGD, torch::optim::SGDOptions>();
extern template OptimizerClass optimizer_class_of<torch::optim::Adam, torch::optim::AdamOptions>();
extern template OptimizerClass optimizer_class_of<torch::optim::AdamW, torch::optim::AdamWOptions>();
extern template OptimizerClass optimizer_class_of<torch::optim::RMSprop, torch::optim::RMSpropOptions>();
extern template OptimizerClass optimizer_class_of<torch::optim::Adagrad, torch::optim::AdagradOptions>();

}  // namespace lockstep::detail
