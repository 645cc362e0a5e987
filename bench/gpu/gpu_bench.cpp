#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "bench/train/models.h"
#include "lockstep/lockstep.h"
#include "lockstep/nn/cuda/segment_kernels.h"

// Steps of AdamW on one GPU: a plain LibTorch loop beside Lockstep with 1, 2 and 4 replicas, in turns; a pipeline that copies
// its batches to the GPU; and the bandwidth of the kernels. bench/peers has the same networks for PyTorch.
namespace lockstep::bench {
namespace {

using Step = std::function<void()>;
using Pair = std::pair<torch::Tensor, torch::Tensor>;

const torch::Device kGpu(torch::kCUDA, 0);
constexpr int kRounds = 9;

double milliseconds_of(const Step& step, int steps) {
  for (int i = 0; i < 3; ++i) step();
  c10::cuda::device_synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  c10::cuda::device_synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / steps;
}

/// The middle one, and the range of the middle half.
struct Spread {
  explicit Spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    low = values[values.size() / 4];
    median = values[values.size() / 2];
    high = values[values.size() - 1 - values.size() / 4];
  }
  double low, median, high;
};

torch::Tensor losses_of(const torch::Tensor& logits, const torch::Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits, labels,
                                              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
}

MirroredOptions on_gpu(int replicas) { return {.devices = replicas == 1 ? gpus(1) : logical_gpus(replicas)}; }

/// A plain loop.
Step plain_step(const std::string& name, const Pair& batch) {
  auto net = make_model(name).net;
  net->to(kGpu);
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
  return [=]() mutable {
    optimizer->zero_grad();
    losses_of(net->forward(batch.first), batch.second).mean().backward();
    optimizer->step();
  };
}

Step mirrored_step(const std::string& name, const Pair& batch, int replicas) {
  auto strategy = std::make_shared<MirroredStrategy>(on_gpu(replicas));
  auto model = strategy->make([&] { return make_model(name).net; });
  auto optimizer = strategy->make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(1e-3));
  auto parts = strategy->values_from_function([&](const ValueContext& its) {
    const auto k = static_cast<std::size_t>(its.replica_id_in_sync_group);
    return Pair{batch.first.chunk(its.num_replicas_in_sync)[k], batch.second.chunk(its.num_replicas_in_sync)[k]};
  });
  return [=, rows = batch.first.size(0)]() mutable {
    strategy->run(
        [&](const Pair& mine) {
          optimizer.minimize(average_loss(losses_of(model->forward(mine.first), mine.second), rows));
        },
        parts);
  };
}

void compare_steps(const std::string& name, std::int64_t rows) {
  torch::manual_seed(0);
  std::vector<std::int64_t> shape = make_model(name).example;
  shape.insert(shape.begin(), rows);
  const Pair batch{torch::randn(shape).to(kGpu), torch::randint(10, {rows}).to(kGpu)};
  std::vector<std::pair<std::string, Step>> programs{{"plain LibTorch", plain_step(name, batch)}};
  for (const int replicas : {1, 2, 4})
    programs.emplace_back("Lockstep, " + std::to_string(replicas), mirrored_step(name, batch, replicas));
  std::vector<std::vector<double>> times(programs.size());
  const int steps = rows > 1000 ? 10 : 30;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < programs.size(); ++i) {
      const std::size_t p = round % 2 == 0 ? i : programs.size() - 1 - i;
      times[p].push_back(milliseconds_of(programs[p].second, steps));
    }
  }
  for (std::size_t p = 0; p < programs.size(); ++p) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < times[p].size(); ++round) ratios.push_back(times[p][round] / times[0][round]);
    const Spread time(times[p]), ratio(ratios);
    std::printf("%-5s %6lld rows  %-15s %8.3f ms   %.3f (%.3f .. %.3f) of plain\n", name.c_str(),
                static_cast<long long>(rows), programs[p].first.c_str(), time.median, ratio.median, ratio.low,
                ratio.high);
  }
  std::fflush(stdout);
}

/// Steps with batches that are copied from the host, beside steps with the same batches on the GPU.
void compare_input(int replicas) {
  constexpr std::int64_t kRows = 4096, kSteps = 48, kFirst = 8;  // the first steps are not measured
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make([] { return make_model("wide").net; });
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(1e-3));
  const auto rows = data::from_tensor_slices(Pair{torch::randn({4 * kRows, 2048}), torch::randint(10, {4 * kRows})});
  const auto batches = strategy.distribute(rows.repeat(kSteps / 4).batch(kRows), {.per_replica_buffer_size = 2});
  const auto train = [&](const auto& input) {
    std::int64_t steps = 0;
    auto start = std::chrono::steady_clock::now();
    for (const auto& batch : input) {
      if (steps++ == kFirst) {
        c10::cuda::device_synchronize();
        start = std::chrono::steady_clock::now();
      }
      strategy.run(
          [&](const Pair& mine) {
            optimizer.minimize(average_loss(losses_of(model->forward(mine.first), mine.second), kRows));
          },
          batch);
    }
    c10::cuda::device_synchronize();
    const auto time = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start);
    return time.count() / static_cast<double>(steps - kFirst);
  };
  std::vector<PerReplica<Pair>> resident;
  for (const auto& batch : batches) resident.push_back(batch);
  std::vector<double> times, ratios;
  for (int round = 0; round < 5; ++round) {
    times.push_back(train(resident));
    ratios.push_back(train(batches) / times.back());
  }
  const Spread ratio(ratios);
  std::printf("input of %d replicas: %.3f ms with batches on the GPU, %.4f (%.4f .. %.4f) of it from the host\n",
              replicas, Spread(times).median, ratio.median, ratio.low, ratio.high);
}

void measure_kernels() {
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  const auto say = [](const char* what, double milliseconds, double bytes) {
    std::printf("%-28s %7.3f ms  %5.0f GB/s\n", what, milliseconds, bytes / milliseconds / 1e6);
  };
  const torch::Tensor from = torch::randn({1 << 28}, kGpu), into = torch::empty_like(from);
  say("copy of 1 GB", milliseconds_of([&] { into.copy_(from); }, 20), 8.0 * static_cast<double>(from.numel()));
  std::vector<torch::Tensor> memory;
  for (int i = 0; i < 4; ++i) memory.push_back(torch::rand({100'000'000}, kGpu));
  const float* gradient[] = {memory[3].const_data_ptr<float>()};
  const gpu::Segments weights{{.target = memory[0].mutable_data_ptr<float>(),
                               .first_state = memory[1].mutable_data_ptr<float>(),
                               .second_state = memory[2].mutable_data_ptr<float>(),
                               .gradients = gradient,
                               .elements = memory[0].numel()}};
  const gpu::AdamStep adam{0.9F, 0.1F, 0.999F, 0.001F, 1.0F, 1e-8F, 1e-3F, 0.0F, 1.0F};
  say("Adam of 1e8 weights", milliseconds_of([&] { gpu::update_adam(weights, 1, 1, adam, stream); }, 20), 28e8);
  for (const int replicas : {2, 4, 8}) {
    std::vector<torch::Tensor> gradients;
    std::vector<const float*> parts;
    for (int k = 0; k < replicas; ++k) {
      gradients.push_back(torch::rand({16'000'000}, kGpu));
      parts.push_back(gradients.back().const_data_ptr<float>());
    }
    const gpu::Segments sum{
        {.target = memory[0].mutable_data_ptr<float>(), .gradients = parts.data(), .elements = 16'000'000}};
    const std::string what = "sum of " + std::to_string(replicas) + " x 64 MB";
    say(what.c_str(), milliseconds_of([&] { gpu::sum_segments(sum, replicas, 1, stream); }, 50), 64e6 * (replicas + 1));
  }
}

}  // namespace
}  // namespace lockstep::bench

int main() {
  using namespace lockstep::bench;
  if (lockstep::visible_gpus() == 0) {
    std::cerr << "error: no GPU is visible\n";
    return 1;
  }
  measure_kernels();
  for (const int replicas : {1, 2}) compare_input(replicas);
  for (const std::int64_t rows : {128, 1024, 16384}) compare_steps("mlp", rows);
  for (const std::int64_t rows : {128, 1024}) compare_steps("cnn", rows);
  for (const std::int64_t rows : {128, 4096}) compare_steps("wide", rows);
}
