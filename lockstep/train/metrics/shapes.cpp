#include "lockstep/train/metrics/shapes.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train::metrics {
namespace {

[[noreturn]] void throw_shape(const std::string& metric, const std::string& wanted, const at::Tensor& output,
                              const at::Tensor& target, const char* help) {
  throw InvalidArgument(
      errors::kShape, {.what = lockstep::str("metric \"", metric, "\" needs ", wanted, ", got an output of shape ",
                                             output.sizes(), " and a target of shape ", target.sizes()),
                       .where = lockstep::str("metric \"", metric, "\""),
                       .seen = lockstep::str("output of ", output.scalar_type(), ", target of ", target.scalar_type()),
                       .help = help});
}

bool are_without_classes(const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() < 2 || target.dim() != output.dim() - 1) return false;
  for (std::int64_t d = 0; d < target.dim(); ++d) {
    if (target.size(d) != output.size(d == 0 ? 0 : d + 1)) return false;
  }
  return true;
}

}  // namespace

void require_same_shape(const std::string& metric, const at::Tensor& output, const at::Tensor& target) {
  if (output.sizes() == target.sizes()) return;
  throw_shape(metric, "an output and a target of the same shape", output, target,
              "reshape one of them, such as output.squeeze(1) in the model's forward: broadcasting would compare every "
              "row with every other");
}

void require_class_numbers(const std::string& metric, const at::Tensor& output, const at::Tensor& target) {
  if (are_without_classes(output, target) && at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return;
  throw_shape(
      metric, "scores [rows, classes, ...] and integer class numbers [rows, ...]", output, target,
      "return one score for each class in dimension 1, and give class numbers as int64; for yes and no with one "
      "score, use binary_accuracy");
}

void require_classes(const std::string& metric, const at::Tensor& output, std::int64_t classes) {
  if (output.size(1) == classes) return;
  throw InvalidArgument(errors::kShape, {.what = lockstep::str("metric \"", metric, "\" was made for ", classes,
                                                               " classes, and the output has ", output.size(1)),
                                         .where = lockstep::str("metric \"", metric, "\""),
                                         .seen = lockstep::str("output of shape ", output.sizes()),
                                         .help = "give .classes the number of scores that the model returns"});
}

}  // namespace lockstep::train::metrics
