#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/strategy/variable.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/per_replica.h"
#include "tests/golden/case.h"
#include "tests/support/nest.h"

// The value forms of the golden data: reading them as C++ values, and writing C++ values in the same forms.
namespace lockstep::golden {

/// A value in a few words: "float32[2](1.5, 2)".
std::string brief(const json& value);

at::ScalarType read_dtype(const json& name);
bool is_tensor(const json& value);
at::Tensor read_tensor(const json& value);
IndexedSlices read_slices(const json& value);

/// Reads values of one case. Equally named objects of the case are the same object in all values of one reader.
class Reader {
 public:
  /// Reads a form that only one area uses; none for all others.
  using Special = std::function<std::optional<Nest>(const json&)>;

  explicit Reader(Special special = {}) : special_(std::move(special)) {}

  /// Tensors, slices, literals, strings, objects, None, nests, distributed values and shared tensors.
  Nest nest(const json& value);

  /// The value of each of `replicas` replicas: its component of a distributed value, the one object otherwise.
  std::vector<Nest> for_each_replica(const json& value, int replicas);

 private:
  std::vector<Nest> nests(const json& values);

  Special special_;
  std::map<std::string, Nest> shared_;
  std::map<std::string, Nest> objects_;
};

inline json none() { return {{"none", true}}; }

inline Nest::Variable nest_variable(const Variable& variable) {
  Nest::Variable result{.whole = variable.impl(), .component_names = {}, .name = variable.name()};
  for (std::size_t k = 0; k < variable.values().size(); ++k)
    result.component_names.push_back(variable.component_name(k));
  return result;
}

/// A C++ value as a Nest; an undefined tensor is None, a variable represents itself.
template <class T>
Nest to_nest(const T& value) {
  if constexpr (is_distributed_v<T>) {
    std::vector<Nest> components;
    for (const auto& component : value) components.push_back(to_nest(component));
    constexpr bool kMirrored = std::is_same_v<T, Mirrored<typename T::value_type>>;
    return kMirrored ? Nest::mirrored(std::move(components)) : Nest::per_replica(std::move(components));
  } else if constexpr (std::is_same_v<T, c10::Scalar>) {
    if (value.isBoolean()) return value.toBool();
    return value.isIntegral(/*includeBool=*/false) ? Nest(value.toLong()) : Nest(value.toDouble());
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    return value.defined() ? Nest(value) : Nest();
  } else if constexpr (std::is_same_v<T, Variable>) {
    return nest_variable(value);
  } else {
    return value;
  }
}

json write(const Nest& nest);
template <class T>
  requires(!std::is_same_v<T, Nest>)
json write(const T& value) { return write(to_nest(value)); }

template <class T>
json write_each(const T& values) {
  json written = json::array();
  for (const auto& value : values) written.push_back(write(value));
  return written;
}

/// The value of a Nest; UnknownForm if the case has something else there. (Nest's own `as` throws one of Lockstep's
/// errors, which could be mistaken for the one that a case expects.)
template <class T>
const T& value_as(const Nest& nest) {
  if (!nest.is<T>()) throw UnknownForm("a value that does not belong there: " + brief(write(nest)));
  return nest.as<T>();
}

/// Nothing if `got` is what the case expects, otherwise the first place that differs, and how. A distributed value of
/// one component, and a PerReplica whose components are all equal, count as the plain value that TensorFlow unwraps to.
std::optional<std::string> difference(const json& expected, const json& got, const std::string& path = "");

}  // namespace lockstep::golden
