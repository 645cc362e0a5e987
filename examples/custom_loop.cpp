// A training loop with full control: batches, a step in parts, metrics over all replicas, evaluation after each epoch.
// With three replicas no batch divides evenly, and no line below has to care.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

/// What a replica reports about its rows of a batch.
struct Report {
  double loss;  // summed over the rows
  double hits;
  double norm;  // norm of the whole batch's gradient: the same on every replica
};

nn::Sequential make_net() {
  return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10));
}

int main(int argc, char** argv) {
  torch::manual_seed(4);
  const auto [known, unseen] = split_digits(load_digits());
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 3)});
  const auto device = strategy.replica_context(0).device();
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.05).momentum(0.9));

  const auto per_row = nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  auto step = [&](const Digits& mine, std::int64_t global_batch) {
    const auto guess = net->forward(mine.images);
    const auto losses = nn::functional::cross_entropy(guess, mine.labels, per_row);
    optimizer.backward(ls::average_loss(losses, global_batch));  // gradients of this replica's rows
    optimizer.reduce_gradients();                                // reduces them over the whole batch
    const double norm = optimizer.clip_global_norm(1.0);         // after the reduction: one norm for all
    optimizer.step();                                            // and clears the gradients
    return Report{losses.sum().item<double>(), (guess.argmax(1) == mine.labels).sum().item<double>(), norm};
  };

  auto judge = [&](const Digits& mine) {
    const torch::NoGradGuard no_grad;
    return (net->forward(mine.images).argmax(1) == mine.labels).to(torch::kFloat);
  };

  auto share_out = [&](const Digits& batch) {
    return strategy.values_from_function([&](ls::ValueContext its) {
      return batch.part(its.replica_id_in_sync_group, its.num_replicas_in_sync).to(device);
    });
  };

  double accuracy = 0;
  std::printf("epoch    loss   accuracy   largest gradient   held out\n");
  for (int epoch = 1; epoch <= 10; ++epoch) {
    double loss = 0, hits = 0, largest = 0;
    for (const auto& rows : torch::randperm(known.count()).split(64)) {
      const auto report = strategy.run(step, share_out(known.pick(rows)), rows.size(0));  // PerReplica<Report>
      const Report sum = strategy.reduce(ls::ReduceOp::Sum, report);
      loss += sum.loss;
      hits += sum.hits;
      largest = std::max(largest, report[0].norm);
    }
    net.eval();  // on the handle: acts on all replicas
    // The mean over all rows of all replicas, however they are divided.
    accuracy = strategy.reduce(ls::ReduceOp::Mean, strategy.run(judge, share_out(unseen)), /*axis=*/0).item<double>();
    net.train();
    const auto count = static_cast<double>(known.count());
    std::printf("%5d  %6.4f  %8.1f%%   %16.3f  %8.1f%%\n", epoch, loss / count, 100 * hits / count, largest,
                100 * accuracy);
  }
  return accuracy > 0.9 ? 0 : 1;
}
