#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <type_traits>

#include "lockstep/values/structure.h"

// The input and the target of a batch: the two parts of a pair, a struct of two tensors or a torch::data::Example. A tensor alone
// is an input without a target.
namespace lockstep::train::detail {

/// Undefined where a batch has none.
struct InputAndTarget {
  at::Tensor input, target;
};

template <class... Parts>
InputAndTarget from_parts(const Parts&... parts) {
  if constexpr (sizeof...(Parts) == 2 && (std::is_same_v<Parts, at::Tensor> && ...))
    return {parts...};
  else
    return {};
}

template <class T>
InputAndTarget input_and_target(const T& batch) {
  using lockstep::detail::StructureKind;
  constexpr StructureKind kind = lockstep::detail::kind_v<T>;
  if constexpr (std::is_same_v<T, at::Tensor>)
    return {batch, {}};
  else if constexpr (requires {
                       at::Tensor(batch.data);
                       at::Tensor(batch.target);
                     })
    return {batch.data, batch.target};
  else if constexpr (kind == StructureKind::Tuple)
    return std::apply([](const auto&... parts) { return from_parts(parts...); }, batch);
  else if constexpr (kind == StructureKind::Aggregate)
    return lockstep::detail::with_fields(batch, [](const auto&... parts) { return from_parts(parts...); });
  else
    return {};
}

}  // namespace lockstep::train::detail
