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

// Steps of AdamW on one GPU: a plain LibTorch loop and Lockstep with 1, 2 and 4 replicas, captured and not, in turns; a
// pipeline that copies its batches to the GPU; and the bandwidth of the kernels. bench/peers has the same networks for
// PyTorch.
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

/// The median, and the range of the middle half.
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

/// A layer like PyTorch's TransformerEncoderLayer, with the fused attention that LibTorch's lacks.
struct EncoderLayerImpl : torch::nn::Module {
  static constexpr std::int64_t kWidth = 512, kHeads = 8;
  static constexpr double kDropout = 0.1;

  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = into->forward(x).unflatten(-1, {3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, is_training() ? kDropout : 0);
    const auto y = first->forward(x + drop->forward(out->forward(mixed.transpose(1, 2).flatten(2))));
    return second->forward(y + drop->forward(down->forward(drop->forward(up->forward(y).relu()))));
  }
  torch::nn::Linear into = register_module("into", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  torch::nn::LayerNorm first = register_module("first", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::LayerNorm second = register_module("second", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(kDropout));
};
TORCH_MODULE(EncoderLayer);

torch::nn::Sequential net_of(const std::string& name) {
  if (name != "transformer") return make_model(name).net;
  torch::nn::Sequential net(torch::nn::Embedding(8192, 512));
  for (int layer = 0; layer < 6; ++layer) net->push_back(EncoderLayer());
  net->push_back(torch::nn::Linear(512, 8192));
  net->push_back(torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(0).end_dim(1)));
  return net;
}

Pair batch_for(const std::string& name, std::int64_t rows) {
  if (name == "transformer")
    return {torch::randint(8192, {rows, 128}).to(kGpu), torch::randint(8192, {rows * 128}).to(kGpu)};
  std::vector<std::int64_t> shape = make_model(name).example;
  shape.insert(shape.begin(), rows);
  return {torch::randn(shape).to(kGpu), torch::randint(10, {rows}).to(kGpu)};
}

/// A plain loop.
Step plain_step(const std::string& name, const Pair& batch) {
  auto net = net_of(name);
  net->to(kGpu);
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
  return [=]() mutable {
    optimizer->zero_grad();
    losses_of(net->forward(batch.first), batch.second).mean().backward();
    optimizer->step();
  };
}

Step mirrored_step(const std::string& name, const Pair& batch, int replicas, bool captures) {
  auto strategy = std::make_shared<MirroredStrategy>(on_gpu(replicas));
  auto model = strategy->make([&] { return net_of(name); });
  auto optimizer = strategy->make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(1e-3));
  auto parts = strategy->values_from_function([&](const ValueContext& its) {
    const auto k = static_cast<std::size_t>(its.replica_id_in_sync_group);
    return Pair{batch.first.chunk(its.num_replicas_in_sync)[k], batch.second.chunk(its.num_replicas_in_sync)[k]};
  });
  auto train = [=, rows = batch.second.size(0)](const Pair& mine) mutable {
    optimizer.minimize(average_loss(losses_of(model->forward(mine.first), mine.second), rows));
  };
  if (!captures) return [=]() mutable { strategy->run(train, parts); };
  auto step = std::make_shared<CapturedStep<std::decay_t<decltype(train)>>>(strategy->capture(train));
  return [=]() mutable {
    (*step)(parts);
    static_cast<void>(strategy);
  };
}

void compare_steps(const std::string& name, std::int64_t rows) {
  torch::manual_seed(0);
  const Pair batch = batch_for(name, rows);
  std::vector<std::pair<std::string, Step>> programs{{"plain LibTorch", plain_step(name, batch)}};
  for (const bool captures : {false, true}) {
    for (const int replicas : {1, 2, 4})
      programs.emplace_back((captures ? "captured, " : "Lockstep, ") + std::to_string(replicas),
                            mirrored_step(name, batch, replicas, captures));
  }
  std::vector<std::vector<double>> times(programs.size());
  const int steps = rows > 1000 || name == "transformer" ? 10 : 30;
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
    std::printf("%-11s %6lld rows  %-15s %8.3f ms   %.3f (%.3f .. %.3f) of plain\n", name.c_str(),
                static_cast<long long>(rows), programs[p].first.c_str(), time.median, ratio.median, ratio.low,
                ratio.high);
  }
  std::fflush(stdout);
}

/// Steps with batches that are copied from the host, and steps with the same batches on the GPU.
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
  gpu::AdamStep numbers{0.9F, 0.1F, 0.999F, 0.001F, 1.0F, 1e-8F, 1e-3F, 0.0F, 1.0F, false};
  const torch::Tensor there = torch::from_blob(&numbers, {sizeof numbers}, torch::kByte).to(kGpu);
  const auto* const adam = reinterpret_cast<const gpu::AdamStep*>(there.const_data_ptr<std::uint8_t>());
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

/// All of it, or the parts that are named: kernels, input, and the steps of networks.
int main(int count, char** names) {
  using namespace lockstep::bench;
  if (lockstep::visible_gpus() == 0) {
    std::cerr << "error: no GPU is visible\n";
    return 1;
  }
  const std::vector<std::string> wanted(names + 1, names + count);
  const auto is_wanted = [&](const std::string& part) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), part) != wanted.end();
  };
  if (is_wanted("kernels")) measure_kernels();
  for (const int replicas : {1, 2}) {
    if (is_wanted("input")) compare_input(replicas);
  }
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> networks{
      {"mlp", {128, 1024, 16384}}, {"cnn", {128, 1024}}, {"wide", {128, 4096}}, {"transformer", {8, 64}}};
  for (const auto& [name, sizes] : networks) {
    for (const std::int64_t rows : sizes) {
      if (is_wanted(name)) compare_steps(name, rows);
    }
  }
}
