#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

// A generator that learns to place points on a circle it has never seen, and a discriminator that separates its points
// from real ones.

/// Points near a circle of radius 1, spread evenly.
inline torch::Tensor points_on_circle(std::int64_t count, const torch::Device& device = torch::kCPU) {
  const auto angle = 2 * M_PI * torch::rand({count}, device);
  return torch::stack({angle.cos(), angle.sin()}, 1) + 0.05 * torch::randn({count, 2}, device);
}

inline torch::nn::Sequential make_network(int inputs, int outputs) {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Linear(inputs, 64), nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(64, 64), nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(64, outputs));
}

/// Binary cross-entropy of the discriminator, per point.
inline torch::Tensor adversarial_loss(const torch::Tensor& logits, double target) {
  return torch::nn::functional::binary_cross_entropy_with_logits(
      logits, torch::full_like(logits, target),
      torch::nn::functional::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kNone));
}

/// Draws the square from -1.5 to 1.5 with a mark for each point.
inline void draw_points(const torch::Tensor& points) {
  constexpr int kRows = 15, kColumns = 31;
  std::vector<std::string> canvas(kRows, std::string(kColumns, '.'));
  for (std::int64_t i = 0; i < points.size(0); ++i) {
    const int column = static_cast<int>((points[i][0].item<double>() + 1.5) / 3 * kColumns);
    const int row = static_cast<int>((1.5 - points[i][1].item<double>()) / 3 * kRows);
    if (column >= 0 && column < kColumns && row >= 0 && row < kRows) canvas[row][column] = '#';
  }
  for (const auto& line : canvas) std::printf("    %s\n", line.c_str());
}

/// Prints the generated points. Returns whether they form a circle.
inline bool show_circle(const torch::Tensor& points) {
  std::printf("\nGenerated points:\n\n");
  draw_points(points);
  const auto radius = points.norm(2, 1);
  const auto octant =
      ((torch::atan2(points.select(1, 1), points.select(1, 0)) + M_PI) / (M_PI / 4)).floor().clamp(0, 7);
  const auto octants = octant.to(torch::kLong).bincount({}, 8).gt(0).sum().item<int>();
  std::printf("\nMean radius: %.2f. Octants with points: %d of 8.\n", radius.mean().item<double>(), octants);
  return std::abs(radius.mean().item<double>() - 1) < 0.25 && octants >= 6;
}
