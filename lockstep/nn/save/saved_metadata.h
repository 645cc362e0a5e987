#pragma once

// The metadata of saved files. Keys with the prefix "lockstep." are Lockstep's; data/format/safetensors.h defines one
// more.
namespace lockstep::detail {

inline constexpr const char* kFormatKey = "lockstep.format";
inline constexpr const char* kNewestFormat = "1";
inline constexpr const char* kVersionKey = "lockstep.version";
inline constexpr const char* kSeedKey = "lockstep.seed";
inline constexpr const char* kStepsKey = "lockstep.steps";          ///< only if the file has an optimizer's state
inline constexpr const char* kOptimizerKey = "lockstep.optimizer";  ///< its class
/// Followed by a parameter's name: the optimizer does not update it, so the file has no state for it. Otherwise missing
/// state means that the parameter was never stepped, or that the class is stateless.
inline constexpr const char* kNotOptimizedKey = "lockstep.not_optimized/";
/// Expected by Python programs in files with a PyTorch model's tensors.
inline constexpr const char* kPythonFormatKey = "format";
inline constexpr const char* kPythonFormat = "pt";

}  // namespace lockstep::detail
