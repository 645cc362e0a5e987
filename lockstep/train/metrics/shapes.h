#pragma once

#include <ATen/core/Tensor.h>

#include <string>

// What metrics ask of outputs and targets. Only shapes and types are looked at, so that nothing waits for the device.
namespace lockstep::train::metrics {

void require_same_shape(const std::string& metric, const at::Tensor& output, const at::Tensor& target);
/// Scores of at least `classes` classes in dimension 1, and integers without that dimension.
void require_class_numbers(const std::string& metric, const at::Tensor& output, const at::Tensor& target);
/// That exactly so many classes have scores.
void require_classes(const std::string& metric, const at::Tensor& output, std::int64_t classes);

}  // namespace lockstep::train::metrics
