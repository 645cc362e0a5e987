// Trains two models in one step, each with its own optimizer. A painter learns to put points on a circle it has never
// seen. It learns from a judge, which learns to tell the painter's points from real ones. `--device gpu` trains on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "devices.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

/// Points near a circle of radius 1, spread evenly.
Tensor points_on_circle(std::int64_t count, const torch::Device& device) {
  const auto angle = 2 * M_PI * torch::rand({count}, device);
  return torch::stack({angle.cos(), angle.sin()}, 1) + 0.05 * torch::randn({count, 2}, device);
}

nn::Sequential make_net(int inputs, int outputs) {
  return nn::Sequential(nn::Linear(inputs, 64), nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(64, 64), nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(64, outputs));
}

/// The loss of the judge's verdicts, per point.
Tensor verdict_loss(const Tensor& verdicts, double truth) {
  return nn::functional::binary_cross_entropy_with_logits(
      verdicts, torch::full_like(verdicts, truth),
      nn::functional::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kNone));
}

/// Draws the square from -1.5 to 1.5 with a mark for each point.
void draw(const Tensor& points) {
  constexpr int kRows = 15, kColumns = 31;
  std::vector<std::string> canvas(kRows, std::string(kColumns, '.'));
  for (std::int64_t i = 0; i < points.size(0); ++i) {
    const int column = static_cast<int>((points[i][0].item<double>() + 1.5) / 3 * kColumns);
    const int row = static_cast<int>((1.5 - points[i][1].item<double>()) / 3 * kRows);
    if (column >= 0 && column < kColumns && row >= 0 && row < kRows) canvas[row][column] = '#';
  }
  for (const auto& line : canvas) std::printf("    %s\n", line.c_str());
}

int main(int argc, char** argv) {
  constexpr std::int64_t kPoints = 64;  // per replica
  torch::manual_seed(5);
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  const auto device = strategy.replica_context(0).device();
  auto painter = strategy.make([] { return make_net(2, 2); });
  auto judge = strategy.make([] { return make_net(2, 1); });
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.9});
  auto of_painter = strategy.make_optimizer<torch::optim::Adam>(painter, options);
  auto of_judge = strategy.make_optimizer<torch::optim::Adam>(judge, options);

  struct Losses {
    double painter, judge;
  };
  auto step = [&] {
    // Every replica draws from its own random stream, so together they see 2 * kPoints different points.
    const auto real = points_on_circle(kPoints, device);
    const auto painted = painter->forward(torch::randn({kPoints, 2}, device));

    const auto judging = verdict_loss(judge->forward(real), 1) + verdict_loss(judge->forward(painted.detach()), 0);
    const auto judge_loss = ls::average_loss(judging);
    of_judge.minimize(judge_loss);

    const auto painter_loss = ls::average_loss(verdict_loss(judge->forward(painted), 1));
    of_painter.minimize(painter_loss);
    of_judge.zero_grad();  // backward went through the judge and left gradients there
    return Losses{painter_loss.item<double>(), judge_loss.item<double>()};
  };

  std::printf("  step   painter's loss   judge's loss\n");
  for (int k = 1; k <= 1500; ++k) {
    const auto losses = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step));
    if (k % 300 == 0) std::printf("%6d   %14.3f   %12.3f\n", k, losses.painter, losses.judge);
  }

  const torch::NoGradGuard no_grad;
  const auto points = painter->forward(torch::randn({500, 2}, device)).cpu();
  std::printf("\nWhat the painter paints:\n\n");
  draw(points);
  const auto radius = points.norm(2, 1);
  const auto octant =
      ((torch::atan2(points.select(1, 1), points.select(1, 0)) + M_PI) / (M_PI / 4)).floor().clamp(0, 7);
  const auto octants = octant.to(torch::kLong).bincount({}, 8).gt(0).sum().item<int>();
  std::printf("\nMean distance from the middle: %.2f. Eighths of the circle with points: %d of 8.\n",
              radius.mean().item<double>(), octants);
  return std::abs(radius.mean().item<double>() - 1) < 0.25 && octants >= 6 ? 0 : 1;
}
