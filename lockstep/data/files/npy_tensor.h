#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/export.h"
#include "lockstep/data/element.h"

namespace lockstep::data {

/// The array of an npy file as a tensor over mapped memory: nothing is read before it is looked at, and pages are
/// shared between processes. Writing to the tensor changes neither the file nor what others see.
LOCKSTEP_EXPORT at::Tensor npy_tensor(const std::string& path);

/// Writes a tensor as an npy file. Unimplemented for element types that numpy does not have (bfloat16).
LOCKSTEP_EXPORT void write_npy(const std::string& path, const at::Tensor& tensor);

/// The rows of an npy file; batches are gathered straight from the mapped file. A file in Fortran order is brought into
/// memory once, since its rows do not lie together.
LOCKSTEP_EXPORT StagePtr make_npy_stage(const std::string& path);

}  // namespace lockstep::data
