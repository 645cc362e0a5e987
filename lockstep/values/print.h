#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/export.h"

// Tensors as text in numpy's format: familiar to Python users, and comparable with values from Python.
namespace lockstep {

/// The output of numpy's repr: "1.0", "3", "True", "array([1, 2])", "array([1., 2.], dtype=float32)". Beyond 1000
/// elements the middle is omitted.
LOCKSTEP_EXPORT std::string numpy_repr(const at::Tensor& tensor);

/// The output of numpy's str, on one line: "1.0", "[1 2]", "[[1. 2.] [3. 4.]]".
LOCKSTEP_EXPORT std::string numpy_str(const at::Tensor& tensor);

/// "()", "(2,)", "(2, 3)".
LOCKSTEP_EXPORT std::string shape_repr(at::IntArrayRef shape);

/// "float32", "int64", "bool", "bfloat16", ...
LOCKSTEP_EXPORT std::string dtype_name(at::ScalarType dtype);

}  // namespace lockstep
