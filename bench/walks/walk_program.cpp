// Repeats one walk through the library, for scripts/walks to watch under callgrind, which skips the warm-up steps.
//
//   walk_program gradient | adam | run | row

#include <ATen/core/Tensor.h>
#include <ATen/ops/linspace.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <valgrind/callgrind.h>

#include <cstdint>
#include <iostream>
#include <string_view>

#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

constexpr int kWarmUp = 20;
constexpr int kSteps = 10;
constexpr std::int64_t kRows = 8;

/// From here on every thread is measured.
void start_watching() { CALLGRIND_START_INSTRUMENTATION; }

void stop_watching() { CALLGRIND_STOP_INSTRUMENTATION; }

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
}

/// The common parts of training programs.
template <class Optimizer>
struct Training {
  template <class Options>
  explicit Training(const Options& options) : optimizer(strategy.make_optimizer<Optimizer>(net, options)) {}

  /// `see` encloses the measured part of a step.
  template <class See>
  void step(const See& see) {
    strategy.run([&] {
      const at::Tensor loss = ls::average_loss(net->forward(x).square());
      see([&] { optimizer.minimize(loss); });
    });
  }
  void warm_up() {
    for (int i = 0; i < kWarmUp; ++i) step([](const auto& minimize) { minimize(); });
  }

  ls::MirroredStrategy strategy{{.devices = ls::cpus(2)}};
  ls::MirroredModule<torch::nn::SequentialImpl> net = strategy.make(make_net);
  ls::MirroredOptimizer<Optimizer> optimizer;
  at::Tensor x = at::linspace(-1, 1, 2 * kRows).reshape({kRows, 2});
};

/// Backward, the meeting and the update; without the run around them and the loss.
template <class Optimizer>
void walk_of_a_gradient(Training<Optimizer> training) {
  training.warm_up();
  start_watching();
  for (int i = 0; i < kSteps; ++i) {
    training.step([](const auto& minimize) {
      CALLGRIND_TOGGLE_COLLECT;  // on the calling thread only
      minimize();
      CALLGRIND_TOGGLE_COLLECT;
    });
  }
  stop_watching();
}

/// A run whose function does nothing, in a program that trains.
void walk_of_a_run() {
  Training<torch::optim::SGD> training(torch::optim::SGDOptions(0.01));
  training.warm_up();
  for (int i = 0; i < kWarmUp; ++i) training.strategy.run([] {});
  start_watching();
  for (int i = 0; i < kSteps; ++i) training.strategy.run([] {});
  stop_watching();
}

void walk_of_a_row() {
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto batches = strategy.distribute(ls::data::range((kWarmUp + kSteps + 1) * kRows)
                                         .map([](const at::Tensor& number) { return number * 2; })
                                         .batch(kRows));
  int step = 0;
  for (const auto& batch : batches) {
    static_cast<void>(batch);
    if (++step == kWarmUp) start_watching();
    if (step == kWarmUp + kSteps) break;
  }
  stop_watching();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view walk = argc == 2 ? argv[1] : "";
  if (walk == "gradient") {
    walk_of_a_gradient(Training<torch::optim::SGD>(torch::optim::SGDOptions(0.01)));
  } else if (walk == "adam") {
    walk_of_a_gradient(Training<torch::optim::Adam>(torch::optim::AdamOptions(0.01)));
  } else if (walk == "run") {
    walk_of_a_run();
  } else if (walk == "row") {
    walk_of_a_row();
  } else {
    std::cerr << "walk_program gradient | adam | run | row\n";
    return 2;
  }
  std::cout << kSteps << "\n";
}
