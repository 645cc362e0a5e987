#include "lockstep/strategy/kernels/convolution_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/kernel_reference.h"

namespace lockstep::kernels {
namespace {

using namespace testing_support;

struct Case {
  std::int64_t images, in_channels, in_height, in_width, out_channels, kernel_height, kernel_width, stride, padding;
  bool channels_last;
};

std::string name(const Case& c) {
  const auto n = [](std::int64_t value) { return std::to_string(value); };
  return n(c.images) + "x" + n(c.in_channels) + "x" + n(c.in_height) + "x" + n(c.in_width) + "_to_" +
         n(c.out_channels) + "_kernel_" + n(c.kernel_height) + "x" + n(c.kernel_width) + "_stride_" + n(c.stride) +
         "_padding_" + n(c.padding) + (c.channels_last ? "_channels_last" : "");
}

ConvolutionShape shape_of(const Case& c) {
  ConvolutionShape s{.images = c.images,
                     .in_channels = c.in_channels,
                     .in_height = c.in_height,
                     .in_width = c.in_width,
                     .out_channels = c.out_channels,
                     .out_height = (c.in_height + 2 * c.padding - c.kernel_height) / c.stride + 1,
                     .out_width = (c.in_width + 2 * c.padding - c.kernel_width) / c.stride + 1,
                     .kernel_height = c.kernel_height,
                     .kernel_width = c.kernel_width,
                     .stride_height = c.stride,
                     .stride_width = c.stride,
                     .padding_height = c.padding,
                     .padding_width = c.padding};
  const auto strides = [&](std::int64_t channels, std::int64_t height,
                           std::int64_t width) -> std::array<std::int64_t, 4> {
    if (c.channels_last) return {channels * height * width, 1, width * channels, channels};
    return {channels * height * width, height * width, width, 1};
  };
  s.input_strides = strides(s.in_channels, s.in_height, s.in_width);
  s.output_gradient_strides = strides(s.out_channels, s.out_height, s.out_width);
  return s;
}

/// The definition, in double.
std::vector<double> reference(const ConvolutionShape& s, const std::vector<float>& input,
                              const std::vector<float>& gradient) {
  std::vector<double> result;
  const auto at = [](const std::vector<float>& values, const std::array<std::int64_t, 4>& strides, std::int64_t n,
                     std::int64_t c, std::int64_t y, std::int64_t x) {
    return static_cast<double>(
        values[static_cast<std::size_t>(n * strides[0] + c * strides[1] + y * strides[2] + x * strides[3])]);
  };
  for (std::int64_t o = 0; o < s.out_channels; ++o) {
    for (std::int64_t c = 0; c < s.in_channels; ++c) {
      for (std::int64_t i = 0; i < s.kernel_height; ++i) {
        for (std::int64_t j = 0; j < s.kernel_width; ++j) {
          double sum = 0;
          for (std::int64_t n = 0; n < s.images; ++n) {
            for (std::int64_t y = 0; y < s.out_height; ++y) {
              for (std::int64_t x = 0; x < s.out_width; ++x) {
                const std::int64_t row = y * s.stride_height + i - s.padding_height,
                                   column = x * s.stride_width + j - s.padding_width;
                if (row < 0 || row >= s.in_height || column < 0 || column >= s.in_width) continue;
                sum +=
                    at(gradient, s.output_gradient_strides, n, o, y, x) * at(input, s.input_strides, n, c, row, column);
              }
            }
          }
          result.push_back(sum);
        }
      }
    }
  }
  return result;
}

class ConvolutionGradientTest : public testing::TestWithParam<Case> {};

TEST_P(ConvolutionGradientTest, EqualsTheDefinition) {
  const ConvolutionShape s = shape_of(GetParam());
  const auto input = random_values(s.images * s.input_strides[0], 1);
  const auto gradient = random_values(s.images * s.output_gradient_strides[0], 2);
  const auto expected = reference(s, input, gradient);
  std::vector<float> result(expected.size(), NAN);
  convolution_weight_gradient(s, input.data(), gradient.data(), 0, s.images, result.data());
  const double tolerance = 1e-6 * std::sqrt(static_cast<double>(s.images * s.out_height * s.out_width) + 1) * 4;
  for (std::size_t k = 0; k < expected.size(); ++k) ASSERT_NEAR(result[k], expected[k], tolerance) << "weight " << k;

  std::vector<float> again(expected.size(), NAN);
  convolution_weight_gradient(s, input.data(), gradient.data(), 0, s.images, again.data());
  EXPECT_EQ(result, again);

  // Ranges of images add up to the whole.
  std::vector<float> first(expected.size()), second(expected.size());
  const std::int64_t cut = s.images / 3;
  convolution_weight_gradient(s, input.data(), gradient.data(), 0, cut, first.data());
  convolution_weight_gradient(s, input.data(), gradient.data(), cut, s.images, second.data());
  for (std::size_t k = 0; k < expected.size(); ++k)
    ASSERT_NEAR(first[k] + second[k], expected[k], tolerance) << "weight " << k;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool channels_last : {false, true}) {
    all.push_back({0, 3, 5, 5, 4, 3, 3, 1, 0, channels_last});
    all.push_back({1, 1, 1, 1, 1, 1, 1, 1, 0, channels_last});
    all.push_back({2, 1, 12, 9, 5, 3, 3, 1, 1, channels_last});
    all.push_back({3, 3, 8, 8, 8, 5, 5, 1, 2, channels_last});
    all.push_back({2, 7, 9, 6, 9, 3, 2, 2, 1, channels_last});
    all.push_back({2, 8, 7, 7, 16, 3, 3, 1, 0, channels_last});   // runs of two vectors of three
    all.push_back({2, 9, 7, 11, 17, 3, 3, 3, 2, channels_last});  // runs that end inside a vector
    all.push_back({4, 32, 6, 6, 24, 1, 1, 1, 0, channels_last});
    all.push_back({1, 24, 5, 5, 8, 1, 1, 2, 0, channels_last});
    all.push_back({2, 16, 40, 40, 64, 3, 3, 1, 1, channels_last});  // several blocks of rows
    all.push_back({1, 64, 3, 90, 96, 3, 3, 1, 1, channels_last});   // and of columns
    all.push_back({1, 5, 4, 4, 3, 4, 4, 1, 3, channels_last});      // most of what it sees is padding
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvolutionGradientTest, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) { return name(test.param); });

}  // namespace
}  // namespace lockstep::kernels
