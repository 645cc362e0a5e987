// Options of models and optimizers, with one function for each. All of them train the same network on the same digits
// for three epochs, and main prints the loss that each one reached. `--device gpu` puts the replicas on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

struct Net : nn::Module {
  explicit Net(int channels) : eye(nn::Conv2dOptions(1, channels, 3)), head(channels * 9, 10) {
    register_module("eye", eye);
    register_module("head", head);
  }
  Tensor forward(const Tensor& images) { return head(torch::max_pool2d(eye(images).relu(), 2).flatten(1)); }

  nn::Conv2d eye;
  nn::Linear head;
};

/// A replica's share of the mean loss over `rows` rows.
Tensor loss_of(const Tensor& guess, const Tensor& labels, std::int64_t rows) {
  const auto per_row = nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  return ls::average_loss(nn::functional::cross_entropy(guess.to(torch::kFloat), labels, per_row), rows);
}

/// Runs three epochs of `step(part, rows of the batch)`, with `before()` before each step. Returns the mean loss of the
/// last epoch.
double train(
    ls::Strategy& strategy, const Digits& digits, const auto& step, const std::function<void()>& before = [] {}) {
  const auto device = strategy.replica_context(0).device();
  double sum = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    sum = 0;
    for (const auto& rows : torch::arange(digits.count()).split(32)) {
      before();
      const auto batch = digits.pick(rows);
      const auto parts = strategy.values_from_function([&](ls::ValueContext its) {
        return batch.part(its.replica_id_in_sync_group, its.num_replicas_in_sync).to(device);
      });
      const auto loss = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step, parts, rows.size(0)));
      sum += loss.template item<double>() * static_cast<double>(rows.size(0));
    }
  }
  return sum / static_cast<double>(digits.count());
}

double with_channels_last(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>({.channels_last = true}, /*channels=*/16);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, AdamOptions(0.005));
  return train(strategy, digits, [&](const Digits& mine, std::int64_t rows) {
    auto loss = loss_of(net(mine.images), mine.labels, rows);
    optimizer.minimize(loss);
    return loss.detach();
  });
}

double with_clipping(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, SGDOptions(0.05).momentum(0.9));
  optimizer.set_clip_global_norm(2.0);
  optimizer.set_non_finite_policy(ls::NonFinitePolicy::Raise);
  return train(strategy, digits, [&](const Digits& mine, std::int64_t rows) {
    auto loss = loss_of(net(mine.images), mine.labels, rows);
    optimizer.minimize(loss);
    return loss.detach();
  });
}

double with_accumulation(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, AdamOptions(0.005));
  optimizer.set_accumulate(2);
  return train(strategy, digits, [&](const Digits& mine, std::int64_t rows) {
    auto loss = loss_of(net(mine.images), mine.labels, 2 * rows);  // the rows of both batches of an update
    optimizer.minimize(loss);
    return 2 * loss.detach();
  });
}

double with_groups_and_schedule(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(
      net, std::vector<ls::ParameterGroup<SGDOptions>>{{{"head."}, SGDOptions(0.1).momentum(0.9).weight_decay(1e-4)},
                                                       {{""}, SGDOptions(0.1).momentum(0.9)}});
  const ls::CosineSchedule schedule{.base = 0.1, .warmup_steps = 10, .total_steps = 3 * 45};
  auto step = [&](const Digits& mine, std::int64_t rows) {
    auto loss = loss_of(net(mine.images), mine.labels, rows);
    optimizer.minimize(loss);
    return loss.detach();
  };
  return train(strategy, digits, step, [&] { optimizer.set_learning_rate(schedule.rate(optimizer.steps())); });
}

double with_bfloat16(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, AdamOptions(0.005));
  return train(strategy, digits, [&](const Digits& mine, std::int64_t rows) {
    const ls::Autocast autocast(torch::kBFloat16);
    auto loss = loss_of(net(mine.images), mine.labels, rows);
    optimizer.minimize(loss);
    return loss.detach();
  });
}

double with_half_precision(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, AdamOptions(0.005));
  ls::GradScaler scaler(strategy);
  return train(strategy, digits, [&](const Digits& mine, std::int64_t rows) {
    const ls::Autocast autocast(torch::kHalf);
    auto loss = loss_of(net(mine.images), mine.labels, rows);
    optimizer.minimize(loss, scaler);
    return loss.detach();
  });
}

double with_digests(ls::Strategy& strategy, const Digits& digits) {
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, AdamOptions(0.005));
  optimizer.set_digest({.every = 20});
  const double loss = train(strategy, digits, [&](const Digits& mine, std::int64_t rows) {
    auto mean = loss_of(net(mine.images), mine.labels, rows);
    optimizer.minimize(mean);
    return mean.detach();
  });
  std::printf("\n  digest of %s: %016llx\n", optimizer.digests()[0].name.c_str(),
              static_cast<unsigned long long>(optimizer.digests()[0].value));
  std::printf("  of all weights and optimizer state: %016llx\n\n",
              static_cast<unsigned long long>(ls::combine(optimizer.digests())));
  return loss;
}

/// Saves after a first training and continues in another model, on three CPUs.
double with_saving(ls::Strategy& strategy, const Digits& digits) {
  const std::string path = (std::filesystem::temp_directory_path() / "digits.safetensors").string();
  const auto train_with = [&](ls::Strategy& on, auto& net, auto& optimizer) {
    return train(on, digits, [&](const Digits& mine, std::int64_t rows) {
      auto loss = loss_of(net(mine.images), mine.labels, rows);
      optimizer.minimize(loss);
      return loss.detach();
    });
  };
  auto net = strategy.make<Net>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, AdamOptions(0.005));
  train_with(strategy, net, optimizer);
  ls::save(path, net, optimizer);

  ls::MirroredStrategy three({.devices = ls::cpus(3)});
  auto again = three.make<Net>(16);
  auto its_optimizer = three.make_optimizer<torch::optim::Adam>(again, AdamOptions(0.005));
  ls::load(path, again, its_optimizer);
  const double loss = train_with(three, again, its_optimizer);

  std::map<std::string, Tensor> mean;  // the mean of both weights
  for (const auto& weight : again.named_parameters())
    mean[weight.key()] = (weight.value().detach() + net.named_parameters()[weight.key()].detach().cpu()) / 2;
  ls::save(path, mean);
  mean = ls::load_tensors(path);
  ls::load(path, again, {.strict = false});  // loads the matching tensors
  std::filesystem::remove(path);

  const std::string old_path = path + ".pt";  // written by a program without Lockstep
  torch::save(std::make_shared<Net>(16), old_path);
  auto plain = std::make_shared<Net>(16);
  torch::load(plain, old_path);
  net.update([&](Net& to) {
    for (const auto& item : plain->named_parameters()) to.named_parameters()[item.key()].copy_(item.value());
    for (const auto& item : plain->named_buffers()) to.named_buffers()[item.key()].copy_(item.value());
  });
  std::filesystem::remove(old_path);
  return loss;
}

int main(int argc, char** argv) {
  const auto digits = split_digits(load_digits()).first;
  const std::pair<const char*, double (*)(ls::Strategy&, const Digits&)> ways[] = {
      {"channels-last weights and images", with_channels_last},
      {"gradients clipped to a norm of 2", with_clipping},
      {"an update every second batch", with_accumulation},
      {"two groups, cosine schedule", with_groups_and_schedule},
      {"bfloat16 by autocast", with_bfloat16},
      {"half precision with a scaled loss", with_half_precision},
      {"digests compared every 20 steps", with_digests},
      {"saved and loaded half-way", with_saving},
  };
  bool all_learn = true;
  for (const auto& [name, way] : ways) {
    torch::manual_seed(8);
    ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
    const double loss = way(strategy, digits);
    std::printf("%-34s  loss %.3f\n", name, loss);
    all_learn = all_learn && loss < 0.6;
  }
  return all_learn ? 0 : 1;
}
