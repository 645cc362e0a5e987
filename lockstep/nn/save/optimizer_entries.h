#pragma once

#include <string_view>

#include "lockstep/nn/optimizer_traits.h"
#include "lockstep/nn/save/tensor_file.h"

// An optimizer's state as tensors of a file:
//
//     optimizer/<parameter>/<key>                             optimizer/fc1.weight/exp_avg
//     optimizer/<parameter>/<key>.indices, .values, .shape    if it is sparse
//
// The number of steps, which belongs to no parameter, is in the metadata.
namespace lockstep::detail {

/// Names with this prefix are never those of weights or buffers.
inline constexpr std::string_view kOptimizerPrefix = "optimizer/";

inline bool is_optimizer_entry(std::string_view name) { return name.starts_with(kOptimizerPrefix); }
/// "fc1.weight" for "optimizer/fc1.weight/exp_avg"; empty if the name does not have this form.
std::string_view parameter_of_entry(std::string_view name);

/// InvalidArgument if a key of an optimizer class has a character reserved by the naming scheme.
void add_optimizer_entries(const OptimizerState& state, TensorMap& tensors);
/// The reverse. `tensors` has entries of this form only.
OptimizerState optimizer_state_of(const TensorMap& tensors);

}  // namespace lockstep::detail
