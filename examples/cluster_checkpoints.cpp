// Training that saves after every epoch and continues from there, with any number of workers:
//
//   lockstep run -n 2 ./cluster_checkpoints
//
// A process whose TF_CONFIG calls it the evaluator tries each saved model on digits that training never sees.

#include <lockstep/cluster.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

const std::string kFile = "cluster_checkpoints.safetensors";
constexpr int kEpochs = 4, kBatch = 64;

nn::Sequential make_net() {
  return nn::Sequential(nn::Conv2d(1, 16, 3), nn::ReLU(), nn::Flatten(), nn::Linear(16 * 36, 10));
}

std::int64_t steps_of(std::int64_t epochs, const Digits& known) {
  return epochs * ((known.count() + kBatch - 1) / kBatch);
}

void train(ls::MultiWorkerMirroredStrategy& strategy, const Digits& known) {
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  const auto per_row = nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  auto step = [&](const Digits& mine) {
    auto loss = ls::average_loss(nn::functional::cross_entropy(net->forward(mine.images), mine.labels, per_row));
    optimizer.minimize(loss);
    return loss.detach();
  };
  auto batches = strategy.distribute(ls::data::from_tensor_slices(known).shuffle(known.count()).batch(kBatch));

  const bool is_there = strategy.broadcast(std::filesystem::exists(kFile));  // the chief's disk counts
  if (is_there) ls::load(kFile, net, optimizer);
  try {
    while (optimizer.steps() < steps_of(kEpochs, known)) {
      torch::Tensor loss;
      for (const auto& batch : batches) loss = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step, batch));
      ls::save(kFile, net, optimizer);  // every worker calls it, the chief writes
      if (strategy.is_chief())
        std::printf("step %lld: loss %.4f\n", static_cast<long long>(optimizer.steps()), loss.item<double>());
    }
  } catch (const ls::Error&) {
    const auto rescued = "rescued_by_worker_" + std::to_string(strategy.worker_id()) + ".safetensors";
    ls::save(rescued, net, optimizer, {.this_worker_only = true});
    throw;
  }
}

void evaluate(ls::MultiWorkerMirroredStrategy& strategy, const Digits& unseen, std::int64_t last_step) {
  auto net = strategy.make(make_net);
  auto count_right = [&](const Digits& mine) {
    const torch::NoGradGuard no_grad;
    return net->forward(mine.images).argmax(1).eq(mine.labels).sum();
  };
  for (std::int64_t seen = 0; seen < last_step;) {
    const auto step = std::filesystem::exists(kFile) ? std::stoll(ls::load_metadata(kFile)["lockstep.steps"]) : 0;
    if (step == seen) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      continue;
    }
    ls::load(kFile, net);
    const auto right = strategy.reduce(ls::ReduceOp::Sum, strategy.run(count_right, strategy.split(unseen)));
    std::printf("after step %lld: %.1f%% of unseen digits are right\n", static_cast<long long>(step),
                (100.0 * right / unseen.count()).item<double>());
    seen = step;
  }
}

int main() {
  try {
    const auto [known, unseen] = split_digits(load_digits());
    ls::MultiWorkerMirroredStrategy strategy({.seed = 1});
    const ls::ClusterDescription& cluster = strategy.cluster();
    if (!cluster.is_local() && cluster.self().task_type == "evaluator") {
      evaluate(strategy, unseen, steps_of(kEpochs, known));
    } else {
      train(strategy, known);
    }
  } catch (const ls::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
