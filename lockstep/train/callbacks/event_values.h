#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/train/logs/histogram.h"
#include "lockstep/train/logs/png.h"

// Tensors as TensorBoard shows them.
namespace lockstep::train::detail {

Histogram histogram_of(const at::Tensor& values);

/// An image with its pixels.
struct Picture {
  Image image;
  std::vector<std::uint8_t> pixels;
};
/// InvalidArgument, with the tag, if the tensor is not [height, width] or [1 to 4 channels, height, width] of bytes or floats.
Picture picture_of(const std::string& tag, const at::Tensor& tensor);

}  // namespace lockstep::train::detail
