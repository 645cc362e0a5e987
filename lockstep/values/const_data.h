#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace lockstep {

/// Equivalent to `tensor.const_data_ptr<T>()`, which clang 18 and newer cannot link: they mangle it differently from
/// the g++ that LibTorch is built with.
template <class T>
const T* const_data(const at::TensorBase& tensor) {
  TORCH_CHECK(tensor.scalar_type() == c10::CppTypeToScalarType<T>::value, "expected ",
              c10::CppTypeToScalarType<T>::value, " elements, got ", tensor.scalar_type());
  return static_cast<const T*>(tensor.const_data_ptr());
}

}  // namespace lockstep
