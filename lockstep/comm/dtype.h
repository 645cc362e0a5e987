#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

/// Element types sent between replicas; engines that do not depend on torch use these.
enum class Dtype { Bool, UInt8, Int8, Int16, Int32, Int64, Float16, BFloat16, Float32, Float64 };

/// Bytes of one element.
constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::Bool:
    case Dtype::UInt8:
    case Dtype::Int8: return 1;
    case Dtype::Int16:
    case Dtype::Float16:
    case Dtype::BFloat16: return 2;
    case Dtype::Int32:
    case Dtype::Float32: return 4;
    case Dtype::Int64:
    case Dtype::Float64: return 8;
  }
  return 0;
}

constexpr bool is_floating(Dtype dtype) {
  return dtype == Dtype::Float16 || dtype == Dtype::BFloat16 || dtype == Dtype::Float32 || dtype == Dtype::Float64;
}

constexpr std::string_view to_string(Dtype dtype) {  ///< "float32", ...
  switch (dtype) {
    case Dtype::Bool: return "bool";
    case Dtype::UInt8: return "uint8";
    case Dtype::Int8: return "int8";
    case Dtype::Int16: return "int16";
    case Dtype::Int32: return "int32";
    case Dtype::Int64: return "int64";
    case Dtype::Float16: return "float16";
    case Dtype::BFloat16: return "bfloat16";
    case Dtype::Float32: return "float32";
    case Dtype::Float64: return "float64";
  }
  return "unknown";
}

}  // namespace lockstep
