#include "tests/golden/json_value.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/values/const_data.h"
#include "lockstep/values/print.h"
#include "tests/golden/outcome.h"

namespace lockstep::golden {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kBool, at::kByte,     at::kChar, at::kShort, at::kInt,
                                      at::kLong, at::kBFloat16, at::kHalf, at::kFloat, at::kDouble};

double read_double(const json& number) {
  if (number == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (number == "inf") return std::numeric_limits<double>::infinity();
  if (number == "-inf") return -std::numeric_limits<double>::infinity();
  if (!number.is_number()) unknown_value("floating point number", number);
  return number.get<double>();
}

std::int64_t read_integer(const json& number) {
  if (number.is_boolean()) return number.get<bool>() ? 1 : 0;
  if (!number.is_number_integer()) unknown_value("integer", number);
  return number.get<std::int64_t>();
}

json write_double(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}

json write_tensor(const at::Tensor& tensor) {
  json data = json::array();
  if (tensor.is_floating_point()) {
    const auto elements = tensor.detach().to(at::kDouble).contiguous();
    for (std::int64_t i = 0; i < elements.numel(); ++i) data.push_back(write_double(const_data<double>(elements)[i]));
  } else {
    const auto elements = tensor.to(at::kLong).contiguous();
    for (std::int64_t i = 0; i < elements.numel(); ++i) data.push_back(const_data<std::int64_t>(elements)[i]);
  }
  return {{"dtype", dtype_name(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"data", data}};
}

json write_container(const Nest::Container& container) {
  if (container.kind == Nest::Kind::List) return {{"list", write_each(container.items)}};
  if (container.kind == Nest::Kind::Tuple) return {{"tuple", write_each(container.items)}};
  json fields = json::object();
  for (std::size_t i = 0; i < container.keys.size(); ++i) fields[container.keys[i]] = write(container.items[i]);
  if (container.kind == Nest::Kind::Dict) return {{"dict", fields}};
  return {{"namedtuple", container.type}, {"fields", fields}};
}

std::vector<std::int64_t> read_integers(const json& list) {
  if (!list.is_array()) unknown_value("list of integers", list);
  std::vector<std::int64_t> integers;
  for (const json& number : list) integers.push_back(read_integer(number));
  return integers;
}

Nest read_literal(const json& literal) {
  if (literal.is_boolean()) return literal.get<bool>();
  if (literal.is_number_integer()) return literal.get<std::int64_t>();
  return read_double(literal);
}

bool is_distributed(const json& value) {
  return value.is_object() && value.size() == 1 && (value.contains("per_replica") || value.contains("mirrored"));
}

bool same_number(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

bool same_elements(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) {
    const auto x = a.to(at::kLong).contiguous(), y = b.to(at::kLong).contiguous();
    return std::equal(const_data<std::int64_t>(x), const_data<std::int64_t>(x) + x.numel(),
                      const_data<std::int64_t>(y));
  }
  const auto x = a.to(at::kDouble).contiguous(), y = b.to(at::kDouble).contiguous();
  return std::equal(const_data<double>(x), const_data<double>(x) + x.numel(), const_data<double>(y), same_number);
}

bool same_tensor(const json& expected, const json& got) {
  if (expected.at("dtype") != got.at("dtype") || expected.at("shape") != got.at("shape")) return false;
  return same_elements(read_tensor(expected), read_tensor(got));
}

/// Whether a distributed value represents one plain value: it has one component, or a PerReplica's are all equal.
bool stands_for(const json& expected, const json& got) {
  const json components = got.begin().value();
  if (components.empty() || (got.contains("mirrored") && components.size() > 1)) return false;
  return std::all_of(components.begin(), components.end(),
                     [&](const json& component) { return !difference(expected, component); });
}

std::string unlike(const std::string& path, const json& expected, const json& got) {
  if (got.is_object() && got.contains("error")) {
    return str(path.empty() ? "the call" : path, ": expected ", brief(expected), ", got ",
               got.at("error").get<std::string>(), ":\n", got.at("text").get<std::string>());
  }
  return str(path.empty() ? "the result" : path, ": expected ", brief(expected), ", got ", brief(got));
}

}  // namespace

at::ScalarType read_dtype(const json& name) {
  for (const at::ScalarType dtype : kDtypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  unknown_value("dtype", name);
}

bool is_tensor(const json& value) { return value.is_object() && value.contains("dtype"); }

at::Tensor read_tensor(const json& value) {
  allow_only(value, {"dtype", "shape", "data"}, "a tensor");
  const at::ScalarType dtype = read_dtype(value.at("dtype"));
  const json& data = value.at("data");
  if (at::isFloatingType(dtype)) {
    std::vector<double> elements;
    for (const json& number : data) elements.push_back(read_double(number));
    return at::tensor(elements, at::kDouble).to(dtype).reshape(read_integers(value.at("shape")));
  }
  return at::tensor(read_integers(data), at::kLong).to(dtype).reshape(read_integers(value.at("shape")));
}

IndexedSlices read_slices(const json& value) {
  const json& parts = value.at("slices");
  allow_only(parts, {"indices", "values", "dense_shape"}, "slices");
  const json& indices = parts.at("indices");
  IndexedSlices slices{
      .values = read_tensor(parts.at("values")),
      .indices = is_tensor(indices) ? read_tensor(indices) : at::tensor(read_integers(indices), at::kLong)};
  if (!parts.at("dense_shape").is_null()) slices.dense_shape = read_integers(parts.at("dense_shape"));
  return slices;
}

std::vector<Nest> Reader::nests(const json& values) {
  if (!values.is_array()) unknown_value("list of values", values);
  std::vector<Nest> read;
  for (const json& value : values) read.push_back(nest(value));
  return read;
}

Nest Reader::nest(const json& value) {
  if (is_tensor(value)) return read_tensor(value);
  if (!value.is_object() || value.empty()) unknown_value("value", value);
  if (special_) {
    if (const auto read = special_(value)) return *read;
  }
  if (value.contains("namedtuple")) {
    allow_only(value, {"namedtuple", "fields"}, "a named tuple");
    std::vector<std::pair<std::string, Nest>> fields;
    for (const auto& [key, field] : value.at("fields").items()) fields.emplace_back(key, nest(field));
    return Nest::named_tuple(value.at("namedtuple"), std::move(fields));
  }
  if (value.contains("shared")) {
    allow_only(value, {"shared", "shared_id"}, "a shared value");
    const std::string id = value.value("shared_id", value.dump());
    if (!shared_.count(id)) shared_.emplace(id, nest(value.at("shared")));
    return shared_.at(id);
  }
  if (value.size() != 1) unknown_value("value", value);
  const std::string form = value.begin().key();
  const json content = value.begin().value();
  if (form == "slices") return read_slices(value);
  if (form == "literal") return read_literal(content);
  if (form == "none") return Nest();
  if (form == "str") return content.get<std::string>();
  if (form == "object") {
    const std::string name = content;
    if (!objects_.count(name)) objects_.emplace(name, Nest::object(name));
    return objects_.at(name);
  }
  if (form == "list") return Nest::list(nests(content));
  if (form == "tuple") return Nest::tuple(nests(content));
  if (form == "per_replica") return Nest::per_replica(nests(content));
  if (form == "mirrored") return Nest::mirrored(nests(content));
  if (form == "dict") {
    std::map<std::string, Nest> entries;
    for (const auto& [key, entry] : content.items()) entries.emplace(key, nest(entry));
    return Nest::dict(std::move(entries));
  }
  unknown_value("value", value);
}

std::vector<Nest> Reader::for_each_replica(const json& value, int replicas) {
  const Nest read = nest(value);
  if (!read.is_distributed()) return std::vector<Nest>(static_cast<std::size_t>(replicas), read);
  if (read.size() != static_cast<std::size_t>(replicas)) {
    throw UnknownForm(str("a value for ", counted(replicas, "replica"), " has ",
                          counted(static_cast<int>(read.size()), "component")));
  }
  return read.items();
}

json write(const Nest& nest) {
  return nest.visit([](const auto& value) -> json {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<T, Nest::None>) {
      return none();
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      return write_tensor(value);
    } else if constexpr (std::is_same_v<T, IndexedSlices>) {
      return {{"slices",
               {{"indices", write_tensor(value.indices).at("data")},
                {"values", write_tensor(value.values)},
                {"dense_shape", value.dense_shape}}}};
    } else if constexpr (std::is_same_v<T, std::string>) {
      return {{"str", value}};
    } else if constexpr (std::is_same_v<T, Nest::Object>) {
      return {{"object", value.label}};
    } else if constexpr (std::is_same_v<T, Nest::Variable>) {
      if (!value.is_component()) return {{"the_variable", true}};
      return {{"the_variable_component_of", value.index}};
    } else if constexpr (std::is_same_v<T, Nest::Components>) {
      return {{value.mirrored ? "mirrored" : "per_replica", write_each(value.items)}};
    } else if constexpr (std::is_same_v<T, Nest::Container>) {
      return write_container(value);
    } else {
      return {{"literal", value}};
    }
  });
}

std::optional<std::string> difference(const json& expected, const json& got, const std::string& path) {
  if (is_distributed(got) && !is_distributed(expected) && stands_for(expected, got)) return std::nullopt;
  if (is_tensor(expected) && is_tensor(got)) {
    return same_tensor(expected, got) ? std::nullopt : std::optional(unlike(path, expected, got));
  }
  if (expected.is_object() && expected.contains("error")) return error_difference(expected, got, path);
  if (expected.is_object() && got.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      if (!got.contains(key)) return unlike(path, expected, got);
      if (auto found = difference(value, got.at(key), str(path, path.empty() ? "" : ".", key))) return found;
    }
    for (const auto& [key, value] : got.items()) {
      if (!expected.contains(key)) return unlike(path, expected, got);
    }
    return std::nullopt;
  }
  if (expected.is_array() && got.is_array()) {
    if (expected.size() != got.size()) return unlike(path, expected, got);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (auto found = difference(expected[i], got[i], str(path, '[', i, ']'))) return found;
    }
    return std::nullopt;
  }
  // The number 2 is not 2.0: literals keep their type.
  const bool same = expected == got && expected.is_number_float() == got.is_number_float();
  return same ? std::nullopt : std::optional(unlike(path, expected, got));
}

std::string brief(const json& value) {
  if (is_tensor(value)) {
    std::string text = value.at("dtype").get<std::string>() + value.at("shape").dump() + "(";
    for (const json& number : value.at("data")) {
      text += text.back() == '(' ? "" : ", ";
      text += number.is_string() ? number.get<std::string>() : number.dump();
    }
    return text + ")";
  }
  if (value.is_object()) {
    if (value.contains("none")) return "None";
    if (value.size() == 1 && value.contains("literal")) return value.at("literal").dump();
    std::string text;
    for (const auto& [key, content] : value.items()) text += (text.empty() ? "" : ", ") + key + ": " + brief(content);
    return "{" + text + "}";
  }
  if (value.is_array()) {
    std::string text;
    for (const json& content : value) text += (text.empty() ? "" : ", ") + brief(content);
    return "[" + text + "]";
  }
  return value.dump();
}

}  // namespace lockstep::golden
