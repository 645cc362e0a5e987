#include "lockstep/values/reducible.h"

#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/values/print.h"

namespace lockstep::detail {
namespace {

std::string place(const Path& path) {
  const std::string text = path.string();
  return text.empty() ? "" : str("leaf ", text);
}

at::Scalar only_element(const at::Tensor& tensor, const Path& path) {
  if (!tensor.defined() || tensor.numel() != 1)
    throw InvalidArgument(errors::kShape,
                          {.what = "the reduction of a number must have one element",
                           .where = place(path),
                           .seen = tensor.defined() ? str("shape ", shape_repr(tensor.sizes())) : "no tensor",
                           .help = "a number has no axis; call reduce without an axis, or pass a tensor"});
  return tensor.item();
}

[[noreturn]] void throw_does_not_fit(const std::string& value, const IntegerRange& range, const Path& path,
                                     const char* help) {
  if (range.purpose == LeafPurpose::Broadcast) {
    throw InvalidArgument(errors::kDtype, {.what = str("the chief's number ", value, " does not fit into ", range.type,
                                                       ", the type of the number that this worker broadcasts"),
                                           .where = place(path),
                                           .help = "call broadcast with the same type of number on every worker"});
  }
  throw InvalidArgument(errors::kDtype, {.what = str("the result ", value, " does not fit into ", range.type,
                                                     ", the type of the reduced number"),
                                         .where = place(path),
                                         .help = help});
}

}  // namespace

at::Tensor tensor_of_number(int64_t value) { return at::scalar_tensor(value, at::kLong); }
at::Tensor tensor_of_number(double value) { return at::scalar_tensor(value, at::kDouble); }
at::Tensor tensor_of_number(float value) { return at::scalar_tensor(value, at::kFloat); }

int64_t integer_of_tensor(const at::Tensor& tensor, const IntegerRange& range, const Path& path) {
  const at::Scalar element = only_element(tensor, path);
  int64_t integer = 0;
  if (element.isFloatingPoint()) {
    const double value = element.toDouble();
    if (value != std::floor(value))
      throw_does_not_fit(str(value), range, path, "the mean of integers may not be an integer: pass a double");
    constexpr double kTwoTo63 = 9223372036854775808.0;
    if (value < -kTwoTo63 || value >= kTwoTo63) throw_does_not_fit(str(value), range, path, "pass a double");
    integer = static_cast<int64_t>(value);
  } else {
    integer = element.toLong();
  }
  if (integer < range.min || (integer > 0 && static_cast<uint64_t>(integer) > range.max))
    throw_does_not_fit(str(integer), range, path, "pass an int64_t, which holds larger numbers");
  return integer;
}

double float_of_tensor(const at::Tensor& tensor, const Path& path) { return only_element(tensor, path).toDouble(); }

void throw_not_reducible(const std::string& type, const Path& path, LeafPurpose purpose) {
  if (purpose == LeafPurpose::Broadcast) {
    throw InvalidArgument(errors::kNotReducible,
                          {.what = str("a value of type ", type, " cannot be broadcast"),
                           .where = place(path),
                           .help = "broadcast tensors, numbers and structures of them; text can travel as a "
                                   "std::vector<int> of its characters"});
  }
  if (purpose == LeafPurpose::Gather) {
    throw InvalidArgument(
        errors::kNotReducible,
        {.what = str("a value of type ", type, " cannot travel to other workers"),
         .where = place(path),
         .help = "return tensors, numbers or structures of them from replicas, or texts by themselves"});
  }
  throw InvalidArgument(errors::kNotReducible,
                        {.what = str("a value of type ", type, " cannot be reduced"),
                         .where = place(path),
                         .help = "reduce tensors, IndexedSlices, numbers and structures of them; remove other parts "
                                 "with map, or read them with local_results"});
}

void throw_integer_too_large(uint64_t value, const Path& path, LeafPurpose purpose) {
  const bool is_reduced = purpose == LeafPurpose::Reduce;
  throw InvalidArgument(
      errors::kDtype,
      {.what = str("the unsigned number ", value, " is too large to ", is_reduced ? "reduce" : "broadcast"),
       .where = place(path),
       .help = str("integers ", is_reduced ? "are reduced" : "travel", " as int64; pass a double")});
}

void throw_leaf_kind_changed(const Path& path) {
  throw Internal(errors::kInternal,
                 {.what = "a reduction returned sparse rows for a dense leaf, or dense values for sparse rows",
                  .where = place(path),
                  .help = "return the kind of value that reduce was called with"});
}

void check_leaf_count(std::size_t expected, std::size_t given) {
  if (expected != given)
    throw Internal(errors::kInternal,
                   {.what = str("a structure of ", expected, " leaves got ", given, " reduced values"),
                    .help = "return one reduced value for every leaf"});
}

}  // namespace lockstep::detail
