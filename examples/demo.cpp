// Trains a network to read handwritten digits on two replicas: `demo [replicas] [--device gpu]`. Each replica works on
// its own rows of a batch. The gradients are added up over replicas, so all of them continue with the same weights.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

constexpr int kEpochs = 15, kBatch = 50;

struct Net : nn::Module {
  Net() {
    register_module("see", see);
    register_module("decide", decide);
  }
  torch::Tensor forward(const torch::Tensor& images) { return decide->forward(see->forward(images)); }

  nn::Sequential see{nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 48, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2)};
  nn::Sequential decide{nn::Flatten(), nn::Dropout(0.5), nn::Linear(48 * 4 * 4, 64), nn::ReLU(), nn::Linear(64, 10)};
};
using Model = ls::MirroredModule<Net>;

/// What each replica counts: the loss summed over its rows, and how many rows were classified correctly.
struct Score {
  double loss = 0;
  std::int64_t hits = 0;
};

struct Training {
  Model model;
  double accuracy = 0;  ///< on the held-out digits
};

torch::Tensor loss_per_row(const torch::Tensor& guess, const torch::Tensor& labels) {
  return nn::functional::cross_entropy(guess, labels,
                                       nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
}

/// The share of correct answers. Each replica evaluates its part.
double examine(ls::Strategy& strategy, Model& model, const Digits& digits) {
  model.eval();
  auto count_hits = [&](const Digits& mine) {
    const torch::NoGradGuard no_grad;
    return (model->forward(mine.images).argmax(1) == mine.labels).sum();
  };
  double hits = 0;
  for (const auto& batch : strategy.distribute(ls::data::from_tensor_slices(digits).batch(digits.count())))
    hits += strategy.reduce(ls::ReduceOp::Sum, strategy.run(count_hits, batch)).item<double>();
  model.train();
  return hits / static_cast<double>(digits.count());
}

Training train(const std::vector<std::string>& devices, const Digits& known, const Digits& unseen, bool tell) {
  torch::manual_seed(1);
  ls::MirroredStrategy strategy({.devices = devices, .deterministic = true});  // the same bits again, also on a GPU
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions().weight_decay(0.05));
  const ls::CosineSchedule rate{
      .base = 3e-3, .warmup_steps = 20, .total_steps = kEpochs * (known.count() / kBatch + 1)};

  auto step = [&](const Digits& mine) {
    const auto guess = model->forward(mine.images);
    const auto losses = loss_per_row(guess, mine.labels);
    optimizer.minimize(ls::average_loss(losses, kBatch));
    return Score{losses.sum().item<double>(), (guess.argmax(1) == mine.labels).sum().item<std::int64_t>()};
  };

  // One dataset for all replicas: each gets its part of every batch. Every epoch has a new order.
  auto batches = strategy.distribute(ls::data::from_tensor_slices(known).shuffle(known.count()).batch(kBatch));
  double accuracy = 0;
  const auto count = static_cast<double>(known.count());
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    Score sum;
    for (const auto& batch : batches) {
      optimizer.set_learning_rate(rate.rate(optimizer.steps()));
      const Score score = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step, batch));
      sum.loss += score.loss;
      sum.hits += score.hits;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    accuracy = examine(strategy, model, unseen);
    if (!tell) continue;
    std::printf("  %5d  %8.4f  %8.1f%%  %8.1f%%  %9.0f\n", epoch, sum.loss / count,
                100 * static_cast<double>(sum.hits) / count, 100 * accuracy, count / seconds.count());
    std::fflush(stdout);
  }
  return {model, accuracy};
}

bool have_equal_weights(Net& a, Net& b) {
  const auto first = a.parameters(), second = b.parameters();
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (!torch::equal(first[i], second[i])) return false;
  }
  return first.size() == second.size();
}

bool have_equal_replicas(const Model& model) {
  for (std::size_t k = 1; k < model.size(); ++k) {
    if (!have_equal_weights(*model.replica(0), *model.replica(k))) return false;
  }
  return true;
}

/// Draws some of the digits side by side, with the true and the predicted label.
void draw(const Digits& digits, const torch::Tensor& guess, const torch::Tensor& which) {
  constexpr std::int64_t kMost = 4;
  const auto shown = which.slice(0, 0, kMost);
  for (std::int64_t y = 0; y < 8; ++y) {
    std::string line;
    for (std::int64_t i = 0; i < shown.size(0); ++i) {
      line += "    ";
      for (std::int64_t x = 0; x < 8; ++x) {
        const auto ink = digits.images.index({shown[i], 0, y, x}).item<double>();
        line += std::string(2, " .:oO@"[static_cast<int>(5 * ink + 0.5)]);
      }
    }
    std::printf("%s\n", line.c_str());
  }
  for (std::int64_t i = 0; i < shown.size(0); ++i) {
    const auto row = shown[i].item<std::int64_t>();
    const std::string text =
        std::to_string(digits.labels[row].item<int>()) + ", taken for " + std::to_string(guess[row].item<int>());
    std::printf("    %-16s", text.c_str());
  }
  std::printf("\n");
}

void show_mistakes(Net& net, const Digits& unseen) {
  const torch::NoGradGuard no_grad;
  net.eval();
  const auto guess = net.forward(unseen.images.to(net.parameters()[0].device())).argmax(1).cpu();
  const auto wrong = (guess != unseen.labels).nonzero().squeeze(1);
  if (wrong.size(0) == 0) return;
  std::printf("\nMistakes it still makes:\n\n");
  draw(unseen, guess, wrong);
}

int run_demo(const std::vector<std::string>& devices) {
  const auto [known, unseen] = split_digits(load_digits());
  std::printf("Handwritten digits: %d to learn from, %d held out, batches of %d, replicas: %d\n\n",
              static_cast<int>(known.count()), static_cast<int>(unseen.count()), kBatch,
              static_cast<int>(devices.size()));
  std::printf("  epoch      loss   accuracy   held out   images/s\n");
  const Training first = train(devices, known, unseen, /*tell=*/true);
  show_mistakes(*first.model, unseen);
  const Training second = train(devices, known, unseen, /*tell=*/false);

  const bool same_replicas = have_equal_replicas(first.model);
  const bool same_runs = have_equal_weights(*first.model, *second.model);
  std::printf("\nRight on digits it has never seen: %.1f%%\n", 100 * first.accuracy);
  std::printf("Weights on all replicas:           %s\n", same_replicas ? "equal, bit by bit" : "NOT EQUAL");
  std::printf("The whole training once more:      %s\n", same_runs ? "the same weights, bit by bit" : "OTHER WEIGHTS");
  return same_replicas && same_runs && first.accuracy >= 0.97 ? 0 : 1;
}

int main(int argc, char** argv) {
  const int replicas = argc > 1 && argv[1][0] != '-' ? std::atoi(argv[1]) : 2;
  if (replicas < 1 || replicas > kBatch) {
    std::fprintf(stderr, "usage: demo [replicas] [--device gpu], replicas from 1 to %d\n", kBatch);
    return 2;
  }
  try {
    return run_demo(devices_of(argc, argv, replicas));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
