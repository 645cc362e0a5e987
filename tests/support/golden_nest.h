#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/values/print.h"
#include "tests/support/nest.h"

// The values of the golden data as Nests.
namespace lockstep::golden {

inline at::ScalarType dtype_of(const std::string& name) {
  using enum at::ScalarType;
  for (const at::ScalarType dtype : {Bool, Byte, Char, Short, Int, Long, Half, BFloat16, Float, Double})
    if (dtype_name(dtype) == name) return dtype;
  throw std::runtime_error("no dtype " + name);
}

inline double number(const nlohmann::json& json) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return json.is_boolean() ? json.get<bool>() : json.get<double>();
}

inline at::Tensor read_tensor(const nlohmann::json& json) {
  const at::ScalarType dtype = dtype_of(json.at("dtype"));
  const auto shape = json.at("shape").get<std::vector<int64_t>>();
  if (at::isIntegralType(dtype, /*includeBool=*/false))
    return at::tensor(json.at("data").get<std::vector<int64_t>>()).to(dtype).reshape(shape);
  std::vector<double> data;
  for (const auto& element : json.at("data")) data.push_back(number(element));
  return at::tensor(data, at::kDouble).to(dtype).reshape(shape);
}

/// Reads the values of one case. Objects of one name and tensors of one `shared_id` are the same object wherever they
/// occur in the case.
class NestReader {
 public:
  /// Makes the case's `the_variable`, `variable` and so on; `replica` is the one that returns it.
  using Variables = std::function<Nest(const nlohmann::json& json, int replica)>;

  explicit NestReader(Variables variables = {}) : variables_(std::move(variables)) {}

  Nest read(const nlohmann::json& json, int replica = 0) {
    if (json.contains("dtype")) return read_tensor(json);
    if (json.contains("literal")) return read_literal(json.at("literal"));
    if (json.contains("slices")) return read_slices(json.at("slices"));
    if (json.contains("per_replica")) return Nest::per_replica(read_each(json.at("per_replica"), replica));
    if (json.contains("mirrored")) return Nest::mirrored(read_each(json.at("mirrored"), replica));
    if (json.contains("list")) return Nest::list(read_each(json.at("list"), replica));
    if (json.contains("tuple")) return Nest::tuple(read_each(json.at("tuple"), replica));
    if (json.contains("dict")) return read_dict(json.at("dict"), replica);
    if (json.contains("namedtuple")) return read_named_tuple(json, replica);
    if (json.contains("none")) return {};
    if (json.contains("str")) return json.at("str").get<std::string>();
    if (json.contains("object")) return shared(json.at("object"), [](const auto& name) { return Nest::object(name); });
    if (json.contains("shared"))
      return shared(json.value("shared_id", ""), [&](const auto&) { return read(json.at("shared"), replica); });
    if (variables_) return variables_(json, replica);
    throw std::runtime_error("no value: " + json.dump());
  }

  std::vector<Nest> read_each(const nlohmann::json& json, int replica = 0) {
    std::vector<Nest> items;
    for (const auto& item : json) items.push_back(read(item, replica));
    return items;
  }

  Nest read_dict(const nlohmann::json& json, int replica = 0) {
    std::map<std::string, Nest> entries;
    for (const auto& [key, value] : json.items()) entries.emplace(key, read(value, replica));
    return Nest::dict(std::move(entries));
  }

 private:
  static Nest read_literal(const nlohmann::json& json) {
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_integer()) return json.get<int64_t>();
    return number(json);
  }

  Nest read_slices(const nlohmann::json& json) {
    return IndexedSlices{.values = read_tensor(json.at("values")),
                         .indices = at::tensor(json.at("indices").get<std::vector<int64_t>>()),
                         .dense_shape = json.at("dense_shape").get<std::vector<int64_t>>()};
  }

  Nest read_named_tuple(const nlohmann::json& json, int replica) {
    std::vector<std::pair<std::string, Nest>> fields;
    for (const auto& [name, value] : json.at("fields").items()) fields.emplace_back(name, read(value, replica));
    return Nest::named_tuple(json.at("namedtuple"), std::move(fields));
  }

  template <class Make>
  Nest shared(const std::string& name, Make&& make) {
    const auto found = shared_.find(name);
    return found != shared_.end() ? found->second : shared_.emplace(name, make(name)).first->second;
  }

  Variables variables_;
  std::map<std::string, Nest> shared_;
};

inline bool equal_tensors(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (!a.is_floating_point()) return at::equal(a, b);
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  return same.all().item<bool>();
}

/// Whether two values are equal to the bit, including types and structure. Objects are equal if they are the same, so
/// both values come from one NestReader.
inline bool equal(const Nest& a, const Nest& b) {
  const auto equal_items = [](const auto& x, const auto& y) {
    return std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal);
  };
  return a.visit([&](const auto& x) {
    using T = std::remove_cvref_t<decltype(x)>;
    if (!b.is<T>()) return false;
    const T& y = b.as<T>();
    if constexpr (std::is_same_v<T, at::Tensor>)
      return equal_tensors(x, y);
    else if constexpr (std::is_same_v<T, IndexedSlices>)
      return equal_tensors(x.values, y.values) && equal_tensors(x.indices, y.indices) && x.dense_shape == y.dense_shape;
    else if constexpr (std::is_same_v<T, Nest::Container>)
      return x.kind == y.kind && x.type == y.type && x.keys == y.keys && equal_items(x, y);
    else if constexpr (std::is_same_v<T, Nest::Components>)
      return x.mirrored == y.mirrored && equal_items(x, y);
    else
      return same_object(a, b);
  });
}

}  // namespace lockstep::golden
