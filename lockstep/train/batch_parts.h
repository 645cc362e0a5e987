#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/train/typed_function.h"
#include "lockstep/values/structure.h"

// What a model gets of a batch: the whole of it, its fields, and the parts of its first field.
namespace lockstep::train::detail {

using AnyRefs = std::vector<AnyRef>;

struct BatchRefs {
  AnyRef whole;
  AnyRefs fields = {};     ///< of a tuple, a struct or a torch::data example; a tensor is its only field
  AnyRefs parts = {};      ///< of the first field, if that is a tuple or a struct
  std::int64_t rows = -1;  ///< of the first tensor; -1 if there is none
};

/// What metrics and losses are computed from.
struct Prediction {
  AnyRef output;
  const AnyRef* target;  ///< null if the batch has none
  const BatchRefs& batch;
};

/// The types, for messages: "batch: Digits with the fields (tensor, tensor)"
inline std::string types_of(const BatchRefs& batch) {
  return lockstep::str("batch: ", lockstep::type_name(batch.whole.type()), " with the fields ",
                       names_of_types(batch.fields));
}
inline std::string types_of(const Prediction& prediction) {
  return lockstep::str("output: ", lockstep::type_name(prediction.output.type()), ", ", types_of(prediction.batch));
}

/// Calls `f(fields...)`, or `f(value)` for anything that has none.
template <class T, class F>
void with_parts(const T& value, F&& f) {
  using lockstep::detail::StructureKind;
  constexpr StructureKind kind = lockstep::detail::kind_v<T>;
  if constexpr (kind == StructureKind::Tuple) {
    std::apply(f, value);
  } else if constexpr (kind == StructureKind::Aggregate) {
    lockstep::detail::with_fields(value, f);
  } else if constexpr (!std::is_same_v<T, at::Tensor> && requires { value.data, value.target; }) {
    f(value.data, value.target);
  } else if constexpr (!std::is_same_v<T, at::Tensor> && requires { at::Tensor(value.data); }) {
    f(value.data);  // a torch::data example without a target
  } else {
    f(value);
  }
}

template <class T>
std::int64_t rows_of_first_tensor(const T& value) {
  std::int64_t rows = -1;
  for_each_leaf(value, [&]<class L>(const L& leaf) {
    if constexpr (std::is_same_v<L, at::Tensor>) {
      if (rows < 0 && leaf.defined() && leaf.dim() > 0) rows = leaf.size(0);
    }
  });
  return rows;
}

/// The batch must outlive them.
template <class T>
BatchRefs refs_of(const T& batch) {
  BatchRefs refs{AnyRef(batch)};
  with_parts(batch, [&]<class First, class... Rest>(const First& first, const Rest&... rest) {
    refs.fields = {AnyRef(first), AnyRef(rest)...};
    refs.rows = rows_of_first_tensor(first);
    if constexpr (lockstep::detail::kind_v<First> == lockstep::detail::StructureKind::Tuple ||
                  lockstep::detail::kind_v<First> == lockstep::detail::StructureKind::Aggregate)
      with_parts(first, [&](const auto&... parts) { refs.parts = {AnyRef(parts)...}; });
  });
  return refs;
}

}  // namespace lockstep::train::detail
