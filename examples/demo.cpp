// Learns to tell two spirals apart, on two replicas: `demo [replicas]`. Every replica has its own network and works on
// its own rows of each batch; the gradients are added up over replicas, so that all networks stay the same.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace ls = lockstep;

struct Points {
  torch::Tensor at, spiral;  // [n, 2] and [n], 0 or 1

  std::int64_t count() const { return at.size(0); }
  Points pick(const torch::Tensor& rows) const { return {at.index_select(0, rows), spiral.index_select(0, rows)}; }
  Points part(int k, int parts) const { return {at.tensor_split(parts)[k], spiral.tensor_split(parts)[k]}; }
};

/// Two spirals, a turn and a half each, with a little noise.
Points make_spirals(std::int64_t count) {
  const auto spiral = torch::arange(count) % 2;
  const auto radius = torch::rand({count}).sqrt();
  const auto angle = 3 * M_PI * radius + M_PI * spiral;
  const auto at = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  return {at + 0.02 * torch::randn({count, 2}), spiral};
}

/// What a replica trains: a network, and the optimizer that keeps its own state about it.
struct Learner {
  torch::nn::Sequential net{torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 2)};
  torch::optim::Adam optimizer{net->parameters(), 0.01};

  torch::Tensor classify(const torch::Tensor& at) {
    const torch::NoGradGuard no_grad;
    return net->forward(at).argmax(1);
  }
};
using Learners = ls::PerReplica<std::shared_ptr<Learner>>;

/// What a step tells: the loss summed over rows, and how many rows were right.
struct Progress {
  double loss = 0;
  std::int64_t hits = 0;
};

/// One step of one replica. The loss is divided by the size of the whole batch, not of the replica's part of it: the
/// sum of the replicas' gradients is then the gradient of the whole batch, however unevenly it is divided.
Progress step(const std::shared_ptr<Learner>& mine, const Points& rows, std::int64_t batch_size) {
  const auto guess = mine->net->forward(rows.at);
  const auto loss = torch::nn::functional::cross_entropy(
      guess, rows.spiral, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  mine->optimizer.zero_grad();
  (loss / batch_size).backward();

  const auto parameters = mine->net->parameters();
  std::vector<torch::Tensor> gradients;
  for (const auto& p : parameters) gradients.push_back(p.grad());
  gradients = ls::get_replica_context().all_reduce(ls::ReduceOp::Sum, gradients);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];

  mine->optimizer.step();
  return {loss.item<double>(), (guess.argmax(1) == rows.spiral).sum().item<std::int64_t>()};
}

bool have_equal_weights(const Learners& learners) {
  for (const auto& learner : learners) {
    const auto first = learners[0]->net->parameters();
    const auto other = learner->net->parameters();
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (!torch::equal(first[i], other[i])) return false;
    }
  }
  return true;
}

/// The disc of the spirals as the network sees it.
void draw(Learner& learner) {
  constexpr int kRows = 23, kColumns = 46;
  const auto x = torch::linspace(-1, 1, kColumns).repeat({kRows});
  const auto y = torch::linspace(1, -1, kRows).repeat_interleave(kColumns);
  const auto spiral = learner.classify(torch::stack({x, y}, 1)).masked_fill(x * x + y * y > 1.05, 2);
  for (const auto& row : spiral.split(kColumns)) {
    std::string line;
    for (int column = 0; column < kColumns; ++column) line += ".# "[row[column].item<int>()];
    std::printf("    %s\n", line.c_str());
  }
}

int main(int argc, char** argv) {
  constexpr int kEpochs = 20, kBatch = 100;
  const int replicas = argc > 1 ? std::atoi(argv[1]) : 2;
  if (replicas < 1 || replicas > kBatch) {
    std::fprintf(stderr, "usage: demo [replicas], from 1 to %d\n", kBatch);
    return 2;
  }

  torch::manual_seed(1);
  const Points known = make_spirals(4000);
  const Points unseen = make_spirals(1000);
  const auto count = static_cast<double>(known.count());

  ls::MirroredStrategy strategy({.devices = ls::cpus(replicas)});
  const Learners learners = strategy.values_from_function([](const ls::ValueContext&) {
    torch::manual_seed(2);  // the same weights for each
    return std::make_shared<Learner>();
  });

  std::printf("Two spirals: %.0f points, batches of %d, replicas: %d, threads each: %d\n\n", count, kBatch, replicas,
              strategy.intra_op_threads());
  std::printf("  epoch      loss   accuracy   points/s\n");
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    Progress sum;
    for (const auto& rows : torch::randperm(known.count()).split(kBatch)) {
      const Points batch = known.pick(rows);
      const auto parts = strategy.values_from_function([&](const ls::ValueContext& its) {
        return batch.part(its.replica_id_in_sync_group, its.num_replicas_in_sync);
      });
      const auto progress = strategy.run(step, learners, parts, batch.count());  // PerReplica<Progress>
      const Progress total = strategy.reduce(ls::ReduceOp::Sum, progress);
      sum.loss += total.loss;
      sum.hits += total.hits;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("  %5d  %8.4f  %8.1f%%  %9.0f\n", epoch, sum.loss / count, 100 * static_cast<double>(sum.hits) / count,
                count / seconds.count());
  }

  std::printf("\nThe spirals as replica 0 sees them:\n\n");
  draw(*learners[0]);

  const auto right = learners[0]->classify(unseen.at) == unseen.spiral;
  const double accuracy = right.to(torch::kDouble).mean().item<double>();
  const bool equal = have_equal_weights(learners);
  std::printf("\n%.1f%% of %d points it has never seen are right.\n", 100 * accuracy, static_cast<int>(unseen.count()));
  std::printf("Weights on all replicas: %s.\n", equal ? "equal, bit by bit" : "NOT EQUAL");
  return equal && accuracy > 0.9 ? 0 : 1;
}
