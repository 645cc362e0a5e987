#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// The array of an npy file as a tensor over mapped memory: pages are read on first use and shared between processes.
/// Writing to the tensor changes neither the file nor other processes' data.
LOCKSTEP_EXPORT at::Tensor npy_tensor(const std::string& path);

/// Writes a tensor as an npy file. Unimplemented for element types that numpy does not have (bfloat16).
LOCKSTEP_EXPORT void write_npy(const std::string& path, const at::Tensor& tensor);

}  // namespace lockstep::data
