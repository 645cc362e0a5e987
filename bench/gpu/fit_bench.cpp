// The overhead of `fit` with captured steps, loss, accuracy and progress over the bare captured step, on one GPU: three
// linear layers, 128 rows, AdamW. The two alternate on the same batches from host memory.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

namespace {

constexpr int kRounds = 9, kSteps = 2000;

struct Rows {
  Tensor x, y;
};

nn::Sequential make_net() {
  return nn::Sequential(nn::Linear(784, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 10));
}

double milliseconds(const std::function<void()>& loop) {
  const auto start = std::chrono::steady_clock::now();
  loop();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / kSteps;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  torch::manual_seed(1);
  ls::MirroredStrategy strategy({.devices = ls::gpus(1)});
  const Rows rows{torch::randn({12'800, 784}), torch::randint(10, {12'800}, torch::kLong)};
  const auto dataset = ls::data::from_tensor_slices(rows).batch(128).repeat();

  auto bare_net = strategy.make(make_net);
  auto bare_optimizer = strategy.make_optimizer<torch::optim::AdamW>(bare_net, torch::optim::AdamWOptions(1e-3));
  auto step = strategy.capture([&](const Rows& mine) {
    const auto losses = torch::cross_entropy_loss(bare_net->forward(mine.x), mine.y, {}, torch::Reduction::None);
    const auto loss = ls::average_loss(losses);
    bare_optimizer.minimize(loss);
    return loss.detach();
  });
  const auto bare = [&] {
    auto batches = strategy.distribute(dataset).iterator();
    for (int k = 1; k < kSteps; ++k) step(*batches.next());
    strategy.reduce(ls::ReduceOp::Sum, step(*batches.next())).item<float>();
  };

  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(net, torch::optim::AdamWOptions(1e-3));
  ls::train::Model model(
      net, optimizer,
      {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}, .capture = true});
  std::ofstream nowhere("/dev/null");
  const auto fit = [&] {
    model.fit(dataset, {.steps_per_epoch = kSteps, .verbose = ls::train::Verbose::Bar, .out = &nowhere});
  };

  bare();
  fit();
  std::vector<double> bare_ms, fit_ms, ratios;
  for (int round = 0; round < kRounds; ++round) {
    bare_ms.push_back(milliseconds(bare));
    fit_ms.push_back(milliseconds(fit));
    ratios.push_back(fit_ms.back() / bare_ms.back());
  }
  std::printf("bare captured step %.4f ms (%s), fit %.4f ms (%s), ratio %.3f\n", median(bare_ms),
              step.reason().empty() ? "recorded" : step.reason().c_str(), median(fit_ms),
              model.capture_reason().empty() ? "recorded" : model.capture_reason().c_str(), median(ratios));
}
