#pragma once

// The metadata of saved files. Keys with "lockstep." in front are Lockstep's; data/format/safetensors.h has one
// more of them.
namespace lockstep::detail {

inline constexpr const char* kFormatKey = "lockstep.format";
inline constexpr const char* kNewestFormat = "1";
inline constexpr const char* kVersionKey = "lockstep.version";
inline constexpr const char* kSeedKey = "lockstep.seed";
inline constexpr const char* kStepsKey = "lockstep.steps";          ///< only where the file has an optimizer's state
inline constexpr const char* kOptimizerKey = "lockstep.optimizer";  ///< its class
/// With a parameter's name after it: the optimizer does not update it, so that the file has no state of it. Without this
/// there is none because no step has reached the parameter, or because the class remembers nothing.
inline constexpr const char* kNotOptimizedKey = "lockstep.not_optimized/";
/// What programs in Python expect of files with the tensors of a PyTorch model.
inline constexpr const char* kPythonFormatKey = "format";
inline constexpr const char* kPythonFormat = "pt";

}  // namespace lockstep::detail
