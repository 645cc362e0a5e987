#include "tests/golden_input/values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::golden_input {
namespace {

json write_tensor(const at::Tensor& tensor) {
  if (tensor.numel() == 0 && tensor.dim() != 1) {
    return {{"shape", tensor.sizes().vec()}};
  }
  if (tensor.dim() == 0) {
    if (tensor.is_floating_point()) return tensor.item().toDouble();
    if (tensor.scalar_type() == at::kBool) return tensor.item().toBool();
    return tensor.item().toLong();
  }
  json list = json::array();
  for (std::int64_t i = 0; i < tensor.size(0); ++i) list.push_back(write_tensor(tensor.select(0, i)));
  return list;
}

json write_component(const data::Component& component) {
  if (const auto* tensor = std::get_if<at::Tensor>(&component)) return write_tensor(*tensor);
  if (const auto* text = std::get_if<std::string>(&component)) return *text;
  if (const auto* strings = std::get_if<data::Strings>(&component)) return strings->values();
  throw UnknownForm("a dataset is not a value");
}

void read_into(const json& value, std::vector<double>& flat, std::vector<std::int64_t>& shape, std::size_t depth) {
  if (!value.is_array()) {
    if (!value.is_number()) golden::unknown_value("number", value);
    flat.push_back(value.get<double>());
    return;
  }
  if (shape.size() == depth) shape.push_back(static_cast<std::int64_t>(value.size()));
  for (const json& part : value) read_into(part, flat, shape, depth + 1);
}

bool holds_floats(const json& value) {
  if (value.is_number_float()) return true;
  if (!value.is_array()) return false;
  for (const json& part : value) {
    if (holds_floats(part)) return true;
  }
  return false;
}

}  // namespace

json write(const data::Element& element) {
  if (element.size() == 1) return write_component(element.components[0]);
  json parts = json::array();
  for (const data::Component& component : element.components) parts.push_back(write_component(component));
  return {{"tuple", parts}};
}

json write(const data::PartialShape& shape) {
  if (!shape.has_rank()) return "unknown rank";
  json dims = json::array();
  for (const std::int64_t dim : shape.dims()) dims.push_back(dim < 0 ? json() : json(dim));
  return dims;
}

json write_shapes(const data::ElementSpec& spec) {
  if (!spec.components) return "unknown";
  json shapes = json::array();
  for (const data::ComponentSpec& component : *spec.components) shapes.push_back(write(component.shape));
  return shapes;
}

json write_components(const data::ElementSpec& spec) {
  if (!spec.components) return "unknown";
  json components = json::array();
  for (const data::ComponentSpec& component : *spec.components) {
    std::string dtype = "unknown";
    if (component.kind == data::ComponentSpec::Kind::Bytes) dtype = "string";
    if (component.dtype == at::kLong) dtype = "int64";
    if (component.dtype == at::kFloat) dtype = "float32";
    components.push_back({{"shape", write(component.shape)}, {"dtype", dtype}});
  }
  return components;
}

json write(data::Cardinality cardinality) {
  if (cardinality.is_infinite()) return "infinite";
  if (cardinality.is_unknown()) return "unknown";
  return cardinality.value();
}

at::Tensor read_tensor(const json& value, const std::string& dtype) {
  if (value.is_object()) {
    golden::allow_only(value, {"shape"}, "a tensor without elements");
    return at::zeros(value["shape"].get<std::vector<std::int64_t>>(), at::kLong);
  }
  std::vector<double> flat;
  std::vector<std::int64_t> shape;
  read_into(value, flat, shape, 0);
  at::Tensor tensor = at::empty(shape, at::kDouble);
  if (tensor.numel() != std::ssize(flat)) golden::unknown_value("tensor, its rows differ in length", value);
  std::copy(flat.begin(), flat.end(), tensor.data_ptr<double>());
  if (dtype == "float32" || (dtype.empty() && holds_floats(value))) return tensor.to(at::kFloat);
  if (!dtype.empty() && dtype != "int64") golden::unknown_value("dtype", dtype);
  return tensor.to(at::kLong);
}

data::Element read_element(const json& value, const std::string& dtype) {
  data::Element element;
  if (value.is_object() && value.contains("tuple")) {
    for (const json& part : value["tuple"]) element.components.emplace_back(read_tensor(part, dtype));
  } else if (value.is_object() && value.contains("dict")) {
    for (const auto& [key, part] : value["dict"].items()) element.components.emplace_back(read_tensor(part, dtype));
  } else {
    element.components.emplace_back(read_tensor(value, dtype));
  }
  return element;
}

json current_error() {
  try {
    throw;
  } catch (const UnknownForm&) {
    throw;
  } catch (const json::exception& error) {
    throw UnknownForm(str("the case does not have the form of its area: ", error.what()));
  } catch (const Error& error) {
    return {{"error", to_string(error.code())}, {"text", error.what()}};
  } catch (const c10::Error& error) {
    return {{"error", "an error of LibTorch"}, {"text", error.what_without_backtrace()}};
  } catch (const std::exception& error) {
    return {{"error", "an exception without a kind"}, {"text", error.what()}};
  }
}

}  // namespace lockstep::golden_input
