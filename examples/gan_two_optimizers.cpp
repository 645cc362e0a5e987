// Trains two models in one step, each with its own optimizer. A painter learns to put points on a circle it has never
// seen. It learns from a judge, which learns to tell the painter's points from real ones. `--device gpu` trains on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "circle.h"
#include "devices.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
  constexpr std::int64_t kPoints = 64;  // per replica
  torch::manual_seed(5);
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  const auto device = strategy.replica_context(0).device();
  auto painter = strategy.make([] { return make_painter_or_judge(2, 2); });
  auto judge = strategy.make([] { return make_painter_or_judge(2, 1); });
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
  return show_circle(points) ? 0 : 1;
}
