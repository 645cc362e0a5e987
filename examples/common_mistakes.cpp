// Makes the mistakes of docs/common_mistakes.md and prints Lockstep's messages, each followed by the right way.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

int unnoticed = 0;

/// Prints the error of a mistake.
void mistake(const char* name, const std::function<void()>& make_it) {
  std::printf("--- %s\n", name);
  try {
    make_it();
    std::printf("nothing was thrown\n\n");
    ++unnoticed;
  } catch (const ls::Error& error) {
    std::printf("%s\n\n", error.what());
  }
}

/// With class weights or `ignore_index`, cross_entropy divides by the weights of its labels, not by the rows.
void divide_by_weights(ls::MirroredStrategy& strategy) {
  auto net = strategy.make<nn::Linear>(4, 3);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, 0.1);
  const auto class_weights = torch::tensor({0.1F, 1.0F, 5.0F});
  const auto plain = nn::functional::CrossEntropyFuncOptions().weight(class_weights).ignore_index(-100);
  const std::pair batch(torch::randn({6, 4}), torch::tensor({0, -100, 1, -100, 2, 2}));
  const Tensor wanted = nn::functional::cross_entropy(net->forward(batch.first), batch.second, plain);

  const auto sum = nn::functional::CrossEntropyFuncOptions(plain).reduction(torch::kSum);
  const auto step = [&](const std::pair<Tensor, Tensor>& mine) {
    const auto& [rows, labels] = mine;
    const auto losses = nn::functional::cross_entropy(net->forward(rows), labels, sum);
    const auto weights = class_weights.index_select(0, labels.index({labels != -100})).sum();
    const auto loss = losses / ls::get_replica_context().all_reduce(ls::ReduceOp::Sum, weights);
    optimizer.minimize(loss);
    return loss.detach();
  };
  const Tensor loss = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step, strategy.split(batch)));
  std::printf("--- class weights and ignore_index\n%.4f, plain %.4f\n\n", loss.item<double>(), wanted.item<double>());
  if (!loss.allclose(wanted)) ++unnoticed;
}

/// With one replica, a port has the plain program's losses: the same weights, dropout and rows are drawn from one seed.
void check_a_port() {
  const auto build = [] { return nn::Sequential(nn::Linear(4, 8), nn::Dropout(0.5), nn::Linear(8, 1)); };
  std::vector<double> plain_losses, losses;

  torch::manual_seed(7);
  auto plain_net = build();
  torch::optim::SGD plain_optimizer(plain_net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto loss = plain_net->forward(torch::randn({5, 4})).square().mean();
    plain_optimizer.zero_grad();
    loss.backward();
    plain_optimizer.step();
    plain_losses.push_back(loss.item<double>());
  }

  torch::manual_seed(7);
  ls::MirroredStrategy strategy({.devices = ls::cpus(1)});
  auto net = strategy.make(build);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, 0.1);
  const auto train_step = [&](const Tensor& rows) {
    const auto loss = ls::average_loss(net->forward(rows).square());
    optimizer.minimize(loss);
    return loss.detach();
  };
  for (int step = 0; step < 3; ++step) {
    const auto loss = strategy.run(train_step, strategy.split(torch::randn({5, 4})));
    losses.push_back(strategy.reduce(ls::ReduceOp::Sum, loss).item<double>());
  }

  std::printf("--- a port with one replica\n");
  for (int step = 0; step < 3; ++step) std::printf("%.9g, plain %.9g\n", losses[step], plain_losses[step]);
  std::printf("\n");
  if (losses != plain_losses) ++unnoticed;
}

int main() {
  check_a_port();
  torch::manual_seed(1);
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto net = strategy.make<nn::Linear>(4, 1);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, 0.1);
  const auto batch = strategy.split(torch::randn({5, 4}));
  const auto losses_of = [&](const Tensor& rows) { return net->forward(rows).square().squeeze(1); };

  mistake("average_loss of a mean", [&] {
    strategy.run([&](const Tensor& rows) { optimizer.minimize(ls::average_loss(losses_of(rows).mean())); }, batch);
  });
  strategy.run(
      [&](const Tensor& rows) {
        optimizer.minimize(ls::average_loss(losses_of(rows)));  // one loss for each row
      },
      batch);

  mistake("losses of some rows, on one replica fewer than rows", [&] {
    strategy.run(
        [&](const Tensor& rows) {
          const bool is_first = ls::get_replica_context().replica_id_in_sync_group() == 0;
          const auto losses = losses_of(is_first ? rows : rows.slice(0, 1));
          optimizer.minimize(ls::average_loss(losses));
        },
        batch);
  });
  strategy.run(
      [&](const Tensor& rows) {
        const auto losses = losses_of(rows.index({rows.select(1, 0) > 0}));
        optimizer.minimize(ls::average_loss(losses, ls::global_rows(losses)));
      },
      batch);

  divide_by_weights(strategy);

  optimizer.set_accumulate(2);
  mistake("a window whose size average_loss cannot know", [&] {
    strategy.run([&](const Tensor& rows) { optimizer.minimize(ls::average_loss(losses_of(rows))); }, batch);
  });
  const std::int64_t rows_of_window = 2 * ls::global_rows(batch);
  for (int call = 0; call < 2; ++call) {
    strategy.run([&](const Tensor& rows) { optimizer.minimize(ls::average_loss(losses_of(rows), rows_of_window)); },
                 batch);
  }
  optimizer.set_accumulate(1);

  mistake("weights changed inside run", [&] {
    strategy.run([&] {
      const torch::NoGradGuard no_grad;
      net->weight.clamp_(-0.1, 0.1);
      net->weight.mul_(0.5);  // on two replicas: a quarter
    });
  });
  net.update([](nn::LinearImpl& once) { once.weight.clamp_(-0.1, 0.1); });

  mistake("an optimizer of LibTorch inside run", [&] {
    torch::optim::SGD plain(net.parameters(), 0.1);
    strategy.run(
        [&](const Tensor& rows) {
          losses_of(rows).mean().backward();
          if (ls::get_replica_context().replica_id_in_sync_group() == 0) plain.step();
        },
        batch);
  });
  strategy.run([&] { optimizer.zero_grad(); });

  mistake("clipping one replica's gradients", [&] {
    strategy.run(
        [&](const Tensor& rows) {
          optimizer.backward(ls::average_loss(losses_of(rows)));
          optimizer.reduce_gradients();
          nn::utils::clip_grad_norm_(net->parameters(), 1e-3);
          optimizer.step();
        },
        batch);
  });
  strategy.run([&] { optimizer.zero_grad(); });
  optimizer.set_clip_global_norm(1e-3);  // minimize clips the gradients of all replicas
  strategy.run([&](const Tensor& rows) { optimizer.minimize(ls::average_loss(losses_of(rows))); }, batch);

  mistake("eval on one replica", [&] {
    net->eval();
    strategy.run([&](const Tensor& rows) { return losses_of(rows); }, batch);
  });
  net.eval();

  mistake("a device that is not there",
          [] { ls::MirroredStrategy on_gpu({.devices = std::vector<std::string>{"cuda:63"}}); });
  return unnoticed == 0 ? 0 : 1;
}
