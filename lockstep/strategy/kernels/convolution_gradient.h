#pragma once

#include <array>
#include <cstdint>

namespace lockstep::kernels {

/// A 2-D convolution without dilation and groups, as its weight gradient sees it. Strides count elements, in the order
/// image, channel, row, column: any memory format will do.
struct ConvolutionShape {
  std::int64_t images = 0;
  std::int64_t in_channels = 0, in_height = 0, in_width = 0;
  std::int64_t out_channels = 0, out_height = 0, out_width = 0;
  std::int64_t kernel_height = 1, kernel_width = 1;
  std::int64_t stride_height = 1, stride_width = 1;
  std::int64_t padding_height = 0, padding_width = 0;
  std::array<std::int64_t, 4> input_strides = {};
  std::array<std::int64_t, 4> output_gradient_strides = {};
};

/// The gradient of a convolution's weights over images [first, last):
///
///     result[o][c][i][j] = sum over images and positions (y, x) of
///                          gradient[o][y][x] * input[c][y * stride + i - padding][x * stride + j - padding]
///
/// `result` is dense in the order [out_channels][in_channels][kernel_height][kernel_width] and is overwritten. The bits
/// depend on the shape and the range alone.
///
/// Why not im2col and a matrix product: in channels-last order the inputs under one row of the kernel are neighbours in
/// memory, so tiles of the result can stay in registers while a block of positions, small enough for the first-level
/// cache, passes by; nothing is unfolded.
void convolution_weight_gradient(const ConvolutionShape& shape, const float* input, const float* output_gradient,
                                 std::int64_t first, std::int64_t last, float* result);

}  // namespace lockstep::kernels
