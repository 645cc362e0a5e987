#include "lockstep/data/codec.h"

#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data::detail {
namespace {

/// "1.5, a float32[]" of a single number, else what it looks like.
std::string described(const Component& component) {
  const std::string spec = to_string(ComponentSpec::of(component));
  const auto* tensor = std::get_if<at::Tensor>(&component);
  if (tensor == nullptr || !tensor->defined() || tensor->numel() != 1) return spec;
  const at::Scalar number = tensor->item();
  if (number.isComplex()) return spec;
  return number.isFloatingPoint() ? str(number.toDouble(), ", a ", spec) : str(number.toLong(), ", a ", spec);
}

}  // namespace

at::Tensor scalar_tensor(std::int64_t value, at::ScalarType dtype) { return at::scalar_tensor(value, dtype); }
at::Tensor scalar_tensor(double value, at::ScalarType dtype) { return at::scalar_tensor(value, dtype); }

void throw_wrong_leaf(const char* wanted, const Component& component, std::size_t index) {
  throw InvalidArgument(errors::kStructure, {.what = str("component ", index, " of the element is not ", wanted),
                                             .seen = described(component),
                                             .help = "name a type that fits what the dataset's stages produce"});
}

void throw_wrong_structure(const std::string& wanted, std::size_t components) {
  throw InvalidArgument(errors::kStructure, {.what = str("the element does not make up ", wanted),
                                             .seen = counted(static_cast<long long>(components), "component"),
                                             .help = "name a type that fits what the dataset's stages produce"});
}

void throw_unknown_rows() {
  throw FailedPrecondition(errors::kStructure,
                           {.what = "an empty batch is due, but its rows are unknown",
                            .seen = "an element without components",
                            .help = "declare the spec of the map or generator, or leave out sizes of 0"});
}

std::int64_t read_integer(const Component& component, std::size_t index) {
  const auto* tensor = std::get_if<at::Tensor>(&component);
  if (tensor == nullptr || tensor->numel() != 1) throw_wrong_leaf("a single number", component, index);
  const at::Scalar number = tensor->item();
  if (!number.isFloatingPoint()) return number.toLong();
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  const double value = number.toDouble();
  if (!(value >= -kBeyond && value < kBeyond) || value != std::trunc(value))
    throw_wrong_leaf("a whole number", component, index);
  return static_cast<std::int64_t>(value);
}

double read_float(const Component& component, std::size_t index) {
  const auto* tensor = std::get_if<at::Tensor>(&component);
  if (tensor == nullptr || tensor->numel() != 1) throw_wrong_leaf("a single number", component, index);
  return tensor->item().toDouble();
}

}  // namespace lockstep::data::detail
