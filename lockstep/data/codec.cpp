#include "lockstep/data/codec.h"

#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "lockstep/data/errors.h"

namespace lockstep::data::detail {
namespace {

/// "1.5, a float32[]" for a single number, otherwise its spec.
std::string described(const Component& component) {
  const std::string spec = to_string(ComponentSpec::of(component));
  const auto* tensor = std::get_if<at::Tensor>(&component);
  if (tensor == nullptr || !tensor->defined() || tensor->numel() != 1) return spec;
  const at::Scalar number = tensor->item();
  if (number.isComplex()) return spec;
  return number.isFloatingPoint() ? str(number.toDouble(), ", a ", spec) : str(number.toLong(), ", a ", spec);
}

[[noreturn]] void throw_wrong_leaf(const std::string& wanted, const Component& component, std::size_t index) {
  throw InvalidArgument(errors::kStructure, {.what = str("component ", index, " of the element is not ", wanted),
                                             .seen = described(component),
                                             .help = "name a type that fits what the dataset's stages produce"});
}

at::Scalar read_number(const Component& component, std::size_t index) {
  const auto* tensor = std::get_if<at::Tensor>(&component);
  if (tensor == nullptr || tensor->numel() != 1) throw_wrong_leaf("a single number", component, index);
  return tensor->item();
}

}  // namespace

at::Tensor scalar_tensor(std::int64_t value, at::ScalarType dtype) { return at::scalar_tensor(value, dtype); }
at::Tensor scalar_tensor(double value, at::ScalarType dtype) { return at::scalar_tensor(value, dtype); }

void throw_wrong_structure(const std::string& wanted, std::size_t components) {
  throw InvalidArgument(errors::kStructure, {.what = str("the element does not make up ", wanted),
                                             .seen = counted(static_cast<long long>(components), "component"),
                                             .help = "name a type that fits what the dataset's stages produce"});
}

std::int64_t read_integer(const Component& component, std::size_t index) {
  const at::Scalar number = read_number(component, index);
  if (!number.isFloatingPoint()) return number.toLong();
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  const double value = number.toDouble();
  if (!(value >= -kBeyond && value < kBeyond) || value != std::trunc(value))
    throw_wrong_leaf("a whole number", component, index);
  return static_cast<std::int64_t>(value);
}

void Encoder::add(Component component) { element_.components.push_back(std::move(component)); }
void Encoder::mark(std::variant<std::int64_t, std::string> length_or_key) {
  if (!skeleton_) element_.skeleton = skeleton_ = std::make_shared<Skeleton>();
  skeleton_->marks.push_back(std::move(length_or_key));
}

Component& Decoder::next_component() {
  if (element_.size() == 0) {
    // An empty batch of rows with unknown structure.
    throw FailedPrecondition(errors::kStructure,
                             {.what = "an empty batch is due, but its rows are unknown",
                              .seen = "an element without components",
                              .help = "declare the spec of the map or generator, or leave out sizes of 0"});
  }
  if (component_ >= element_.size()) throw_wrong_structure("a larger structure", element_.size());
  return element_.components[component_++];
}

double Decoder::take_float() {
  const Component& component = next_component();
  return read_number(component, component_ - 1).toDouble();
}

std::int64_t Decoder::take_integer() {
  const Component& component = next_component();
  return read_integer(component, component_ - 1);
}

void Decoder::throw_other_kind(const std::string& wanted) const {
  throw_wrong_leaf(wanted, element_.components[component_ - 1], component_ - 1);
}

void Decoder::throw_too_large(const std::string& type) const {
  throw_wrong_leaf("a number that fits " + type, element_.components[component_ - 1], component_ - 1);
}

const std::variant<std::int64_t, std::string>& Decoder::next_mark() {
  if (!element_.skeleton || mark_ >= element_.skeleton->marks.size())
    throw_wrong_structure("a structure with vectors or maps", element_.size());
  return element_.skeleton->marks[mark_++];
}

std::int64_t Decoder::next_number() { return std::get<std::int64_t>(next_mark()); }
const std::string& Decoder::next_key() { return std::get<std::string>(next_mark()); }

}  // namespace lockstep::data::detail
