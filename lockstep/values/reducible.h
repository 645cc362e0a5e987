#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/structure.h"

// The values that reductions accept. A structure is split into tensors and sparse rows, these are reduced one by one,
// and a structure of the same type is built from the results. Plain numbers are sent as tensors without dimensions.
namespace lockstep {

using ReducibleLeaf = std::variant<at::Tensor, IndexedSlices>;  ///< what can be reduced: a tensor or sparse rows

namespace detail {

LOCKSTEP_EXPORT at::Tensor tensor_of_number(int64_t value);
LOCKSTEP_EXPORT at::Tensor tensor_of_number(double value);
LOCKSTEP_EXPORT at::Tensor tensor_of_number(float value);

/// Why leaves are sent, for messages.
enum class LeafPurpose { Reduce, Broadcast, Gather };

/// The range of an integral leaf type, for checking results.
struct IntegerRange {
  const char* type;
  int64_t min;
  uint64_t max;
  LeafPurpose purpose = LeafPurpose::Reduce;
};
LOCKSTEP_EXPORT int64_t integer_of_tensor(const at::Tensor& tensor, const IntegerRange& range, const Path& path);
LOCKSTEP_EXPORT double float_of_tensor(const at::Tensor& tensor, const Path& path);

[[noreturn]] LOCKSTEP_EXPORT void throw_not_reducible(const std::string& type, const Path& path, LeafPurpose purpose);
[[noreturn]] LOCKSTEP_EXPORT void throw_integer_too_large(uint64_t value, const Path& path, LeafPurpose purpose);
[[noreturn]] LOCKSTEP_EXPORT void throw_leaf_kind_changed(const Path& path);
LOCKSTEP_EXPORT void check_leaf_count(std::size_t expected, std::size_t given);

template <class T>
ReducibleLeaf to_reducible(const T& leaf, const Path& path, LeafPurpose purpose = LeafPurpose::Reduce) {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, IndexedSlices>) {
    return leaf;
  } else if constexpr (std::is_same_v<T, float>) {
    return tensor_of_number(leaf);
  } else if constexpr (std::is_floating_point_v<T>) {
    return tensor_of_number(static_cast<double>(leaf));
  } else if constexpr (std::is_integral_v<T>) {
    if (purpose != LeafPurpose::Gather && !std::in_range<int64_t>(+leaf))
      throw_integer_too_large(static_cast<uint64_t>(leaf), path, purpose);
    return tensor_of_number(static_cast<int64_t>(leaf));
  } else {
    throw_not_reducible(type_name<T>(), path, purpose);
  }
}

template <class T>
void from_reducible(ReducibleLeaf&& reduced, T& leaf, const Path& path, LeafPurpose purpose = LeafPurpose::Reduce) {
  if constexpr (std::is_same_v<T, IndexedSlices>) {
    auto* slices = std::get_if<IndexedSlices>(&reduced);
    if (!slices) throw_leaf_kind_changed(path);
    leaf = std::move(*slices);
  } else {
    auto* tensor = std::get_if<at::Tensor>(&reduced);
    if (!tensor) throw_leaf_kind_changed(path);
    if constexpr (std::is_same_v<T, at::Tensor>) {
      leaf = std::move(*tensor);
    } else if constexpr (std::is_floating_point_v<T>) {
      leaf = static_cast<T>(float_of_tensor(*tensor, path));
    } else if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      const std::string type = type_name<T>();
      IntegerRange range{type.c_str(), static_cast<int64_t>(Limits::min()), Limits::max(), purpose};
      if (purpose == LeafPurpose::Gather)
        range.min = std::numeric_limits<int64_t>::min();  // it was sent with these bits
      leaf = static_cast<T>(integer_of_tensor(*tensor, range, path));
    } else {
      throw_not_reducible(type_name<T>(), path, purpose);
    }
  }
}

}  // namespace detail

/// The leaves of `s` from left to right. Numbers become CPU tensors without dimensions: bool and integers int64, float
/// float32, double float64. InvalidArgument names the first leaf of any other kind.
template <class S>
std::vector<ReducibleLeaf> flatten_reducible(const S& s, detail::LeafPurpose purpose = detail::LeafPurpose::Reduce) {
  std::vector<ReducibleLeaf> leaves;
  auto add = [&](const Path& path, const auto& leaf) { leaves.push_back(detail::to_reducible(leaf, path, purpose)); };
  detail::visit_leaves(s, Path(), add);
  return leaves;
}

/// A structure like `like` with the reduced leaves in place of its own. Numbers are converted back; one that does not
/// fit its type (a fractional mean of integers, a sum out of range) is an InvalidArgument.
template <class S>
S unflatten_reducible(const S& like, std::vector<ReducibleLeaf> leaves,
                      detail::LeafPurpose purpose = detail::LeafPurpose::Reduce) {
  S result = like;
  std::size_t next = 0;
  auto replace = [&](const Path& path, auto& leaf) {
    if (next < leaves.size()) detail::from_reducible(std::move(leaves[next]), leaf, path, purpose);
    ++next;
  };
  detail::visit_leaves(result, Path(), replace);
  detail::check_leaf_count(next, leaves.size());
  return result;
}

}  // namespace lockstep
