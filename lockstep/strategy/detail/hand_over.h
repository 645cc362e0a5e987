#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <variant>

#include "lockstep/base/export.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/structure.h"

namespace lockstep::detail {

/// For a tensor on a GPU that was made on another stream, the caller's or another replica's: its memory is not used again before what this replica
/// has done with it is over. Nothing on a CPU.
LOCKSTEP_EXPORT void keep_for_this_replica(const at::Tensor& tensor);

/// The same for every tensor of a structure. What else a program hands from replica to replica is unknown here.
template <class T>
void take_over([[maybe_unused]] const T& value) {
  using enum StructureKind;
  constexpr StructureKind kind = kind_v<T>;
  [[maybe_unused]] const auto each = [](const auto&... parts) { (take_over(parts), ...); };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (value.defined() && value.is_cuda()) keep_for_this_replica(value);
  } else if constexpr (std::is_same_v<T, IndexedSlices>) {
    each(value.values, value.indices);
  } else if constexpr (requires { value.valueless_by_exception(); }) {
    std::visit(each, value);
  } else if constexpr (kind == Tuple) {
    std::apply(each, value);
  } else if constexpr (kind == Aggregate) {
    with_fields(value, each);
  } else if constexpr (kind == Optional) {
    if (value) each(*value);
  } else if constexpr (kind == Map || kind == UnorderedMap) {
    for (const auto& entry : value) each(entry.second);
  } else if constexpr (kind == Array || kind == Vector) {
    if constexpr (!std::is_arithmetic_v<typename T::value_type>) {
      for (const auto& element : value) each(element);
    }
  }
}

}  // namespace lockstep::detail
