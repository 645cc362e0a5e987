#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/values/per_replica.h"
#include "lockstep/values/type_name.h"
#include "tests/golden/case.h"
#include "tests/golden/json_value.h"
#include "tests/support/nest.h"

// Converts dynamic values to the types that a C++ program would use.
namespace lockstep::golden {

/// Whether all of `nests` contain a T.
template <class T>
bool all_are(const std::vector<Nest>& nests) {
  return !nests.empty() && std::all_of(nests.begin(), nests.end(), [](const Nest& nest) { return nest.is<T>(); });
}

template <class T>
std::vector<T> each_as(const std::vector<Nest>& nests) {
  if constexpr (std::is_same_v<T, Nest>) {
    return nests;
  } else {
    std::vector<T> values;
    for (const Nest& nest : nests) values.push_back(nest.as<T>());
    return values;
  }
}

/// Calls `f` with the values in their common type; as Nests if they differ.
template <class F>
auto with_one_type(const std::vector<Nest>& nests, F&& f) {
  if (all_are<at::Tensor>(nests)) return f(each_as<at::Tensor>(nests));
  if (all_are<IndexedSlices>(nests)) return f(each_as<IndexedSlices>(nests));
  if (all_are<std::int64_t>(nests)) return f(each_as<std::int64_t>(nests));
  if (all_are<double>(nests)) return f(each_as<double>(nests));
  return f(nests);
}

/// The result of `f` for a value; UnknownForm if C++ does not allow calling it with this type.
template <class F, class T>
Nest apply_typed(F& f, const T& value) {
  if constexpr (std::invocable<F&, const T&>)
    return to_nest(f(value));
  else
    throw UnknownForm("this call takes no " + type_name<T>());
}

/// Calls `f` with the value in the type that a program would use: a tensor, a number, a PerReplica or Mirrored of
/// these. In a nest, every leaf is replaced by the result of `f`.
template <class F>
Nest map_typed(const Nest& value, F&& f) {
  return value.visit([&](const auto& content) -> Nest {
    using T = std::remove_cvref_t<decltype(content)>;
    if constexpr (std::is_same_v<T, Nest::Components>) {
      return with_one_type(content.items, [&]<class C>(std::vector<C> components) {
        if (content.mirrored) return apply_typed(f, Mirrored<C>(std::move(components)));
        return apply_typed(f, PerReplica<C>(std::move(components)));
      });
    } else if constexpr (std::is_same_v<T, Nest::Container>) {
      Nest::Container mapped = content;
      for (Nest& item : mapped.items) item = map_typed(item, f);
      return mapped;
    } else if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, IndexedSlices> || std::is_arithmetic_v<T>) {
      return apply_typed(f, content);
    } else {
      throw UnknownForm("this call takes no " + type_name<T>());
    }
  });
}

}  // namespace lockstep::golden
