#include "lockstep/strategy/kernels/convolution_gradient.h"

#include <algorithm>
#include <vector>

#include "lockstep/strategy/kernels/vector_tile.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kFewNeighbours = 24;       // a kernel row with fewer inputs is unfolded with the other rows
constexpr std::int64_t kCacheFloats = 12 * 1024;  // what a block of positions may take of the first-level cache

std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

/// How the inputs of a block of positions lie in the scratch memory.
///
/// Neighbours under one kernel row: the block's input rows one after the other, channels innermost; the run of a
/// position overlaps with the next one's; one group per kernel row. Unfolded (few channels): all inputs under the
/// kernel, one run per position, one group.
struct Layout {
  explicit Layout(const ConvolutionShape& s)
      : unfolded(s.kernel_width * s.in_channels < kFewNeighbours),
        groups(unfolded ? 1 : s.kernel_height),
        run(s.kernel_width * s.in_channels * (unfolded ? s.kernel_height : 1)),
        padded_run(round_up(run, kLanes)),
        padded_channels(round_up(s.out_channels, kTileRows)) {
    columns = s.out_width;
    while (columns > 8 && gradient_floats(1, columns) + inputs_of(s, 1, columns) > kCacheFloats)
      columns = (columns + 1) / 2;
    while (rows < s.out_height && gradient_floats(rows + 1, columns) + inputs_of(s, rows + 1, columns) <= kCacheFloats)
      ++rows;
    input_floats = inputs_of(s, rows, columns) + kLanes;  // runs are read in whole vectors
  }

  std::int64_t gradient_floats(std::int64_t r, std::int64_t c) const { return r * c * padded_channels; }
  std::int64_t inputs_of(const ConvolutionShape& s, std::int64_t r, std::int64_t c) const {
    return unfolded ? r * c * padded_run : input_rows(s, r) * input_columns(s, c) * s.in_channels;
  }
  static std::int64_t input_rows(const ConvolutionShape& s, std::int64_t r) {
    return (r - 1) * s.stride_height + s.kernel_height;
  }
  static std::int64_t input_columns(const ConvolutionShape& s, std::int64_t c) {
    return (c - 1) * s.stride_width + s.kernel_width;
  }

  bool unfolded;
  std::int64_t groups, run, padded_run, padded_channels;
  std::int64_t rows = 1, columns = 1;  ///< positions of a block
  std::int64_t input_floats = 0;
};

/// A block of positions of one image.
struct Block {
  std::int64_t image, row, column, rows, columns;
};

/// Copies a row of pixels to channels-innermost order. `pixels` lie `pixel_stride` apart.
void copy_pixels(const float* from, std::int64_t pixels, std::int64_t channels, std::int64_t channel_stride,
                 std::int64_t pixel_stride, std::int64_t to_pixel_stride, float* to) {
  if (channel_stride == 1 || channels == 1) {
    for (std::int64_t p = 0; p < pixels; ++p) std::copy_n(from + p * pixel_stride, channels, to + p * to_pixel_stride);
    return;
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    const float* source = from + c * channel_stride;
    for (std::int64_t p = 0; p < pixels; ++p) to[p * to_pixel_stride + c] = source[p * pixel_stride];
  }
}

void gather_gradients(const ConvolutionShape& s, const Layout& layout, const Block& block, const float* gradients,
                      float* to) {
  const auto& strides = s.output_gradient_strides;
  for (std::int64_t y = 0; y < block.rows; ++y) {
    const float* from = gradients + block.image * strides[0] + (block.row + y) * strides[2] + block.column * strides[3];
    copy_pixels(from, block.columns, s.out_channels, strides[1], strides[3], layout.padded_channels,
                to + y * block.columns * layout.padded_channels);
  }
}

/// Columns [first, first + count) of one input row, zero outside of the image.
void gather_input_row(const ConvolutionShape& s, std::int64_t image, std::int64_t row, std::int64_t first,
                      std::int64_t count, const float* input, float* to) {
  if (row < 0 || row >= s.in_height) {
    std::fill_n(to, count * s.in_channels, 0.0F);
    return;
  }
  const std::int64_t begin = std::clamp<std::int64_t>(-first, 0, count);
  const std::int64_t end = std::clamp<std::int64_t>(s.in_width - first, begin, count);
  const auto& strides = s.input_strides;
  std::fill_n(to, begin * s.in_channels, 0.0F);
  copy_pixels(input + image * strides[0] + row * strides[2] + (first + begin) * strides[3], end - begin, s.in_channels,
              strides[1], strides[3], s.in_channels, to + begin * s.in_channels);
  std::fill_n(to + end * s.in_channels, (count - end) * s.in_channels, 0.0F);
}

void gather_inputs(const ConvolutionShape& s, const Layout& layout, const Block& block, const float* input,
                   std::vector<float>& row_buffer, float* to) {
  const std::int64_t width = Layout::input_columns(s, block.columns);
  const std::int64_t first_column = block.column * s.stride_width - s.padding_width;
  const std::int64_t first_row = block.row * s.stride_height - s.padding_height;
  if (!layout.unfolded) {
    for (std::int64_t y = 0; y < Layout::input_rows(s, block.rows); ++y) {
      gather_input_row(s, block.image, first_row + y, first_column, width, input, to + y * width * s.in_channels);
    }
    return;
  }
  row_buffer.resize(static_cast<std::size_t>(width * s.in_channels));
  const std::int64_t row_run = s.kernel_width * s.in_channels;
  for (std::int64_t y = 0; y < block.rows; ++y) {
    for (std::int64_t i = 0; i < s.kernel_height; ++i) {
      gather_input_row(s, block.image, first_row + y * s.stride_height + i, first_column, width, input,
                       row_buffer.data());
      for (std::int64_t x = 0; x < block.columns; ++x) {
        const float* from = row_buffer.data() + x * s.stride_width * s.in_channels;
        std::copy_n(from, row_run, to + (y * block.columns + x) * layout.padded_run + i * row_run);
      }
    }
  }
}

/// All tiles of the result, for one block in the scratch memory. `sums` is [groups][padded_channels][padded_run].
void accumulate_block(const Layout& layout, const TileSteps& steps, std::int64_t group_step, const float* gradients,
                      const float* inputs, float* sums) {
  for (std::int64_t group = 0; group < layout.groups; ++group) {
    for (std::int64_t o = 0; o < layout.padded_channels; o += kTileRows) {
      float* row = sums + (group * layout.padded_channels + o) * layout.padded_run;
      const float* in = inputs + group * group_step;
      for (std::int64_t n = 0; n < layout.padded_run; n += kTileColumns) {
        switch (std::min(kTileVectors, (layout.padded_run - n) / kLanes)) {
          case 3: accumulate_tile<3>(steps, gradients + o, in + n, row + n, layout.padded_run); break;
          case 2: accumulate_tile<2>(steps, gradients + o, in + n, row + n, layout.padded_run); break;
          default: accumulate_tile<1>(steps, gradients + o, in + n, row + n, layout.padded_run); break;
        }
      }
    }
  }
}

}  // namespace

void convolution_weight_gradient(const ConvolutionShape& s, const float* input, const float* output_gradient,
                                 std::int64_t first, std::int64_t last, float* result) {
  const Layout layout(s);
  std::vector<float> gradients(static_cast<std::size_t>(layout.gradient_floats(layout.rows, layout.columns)));
  std::vector<float> inputs(static_cast<std::size_t>(layout.input_floats));
  std::vector<float> sums(static_cast<std::size_t>(layout.groups * layout.padded_channels * layout.padded_run));
  std::vector<float> row_buffer;
  for (std::int64_t image = first; image < last; ++image) {
    for (std::int64_t row = 0; row < s.out_height; row += layout.rows) {
      for (std::int64_t column = 0; column < s.out_width; column += layout.columns) {
        const Block block{image, row, column, std::min(layout.rows, s.out_height - row),
                          std::min(layout.columns, s.out_width - column)};
        gather_gradients(s, layout, block, output_gradient, gradients.data());
        gather_inputs(s, layout, block, input, row_buffer, inputs.data());
        const std::int64_t width = Layout::input_columns(s, block.columns) * s.in_channels;
        const TileSteps steps{
            .rows = block.rows,
            .columns = block.columns,
            .left_row = block.columns * layout.padded_channels,
            .left_column = layout.padded_channels,
            .right_row = layout.unfolded ? block.columns * layout.padded_run : s.stride_height * width,
            .right_column = layout.unfolded ? layout.padded_run : s.stride_width * s.in_channels};
        accumulate_block(layout, steps, width, gradients.data(), inputs.data(), sums.data());
      }
    }
  }
  // From [kernel row][output channel][kernel column][input channel], rows merged when unfolded, to the order of
  // LibTorch.
  const std::int64_t row_run = s.kernel_width * s.in_channels;
  for (std::int64_t o = 0; o < s.out_channels; ++o) {
    for (std::int64_t i = 0; i < s.kernel_height; ++i) {
      const float* from = layout.unfolded ? sums.data() + o * layout.padded_run + i * row_run
                                          : sums.data() + (i * layout.padded_channels + o) * layout.padded_run;
      for (std::int64_t j = 0; j < s.kernel_width; ++j) {
        for (std::int64_t c = 0; c < s.in_channels; ++c) {
          result[((o * s.in_channels + c) * s.kernel_height + i) * s.kernel_width + j] = from[j * s.in_channels + c];
        }
      }
    }
  }
}

}  // namespace lockstep::kernels
