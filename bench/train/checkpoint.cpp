// The cost of a checkpoint for a training: the delay of the step that takes the snapshot, the duration of steps while
// it is written, and the time to load it.
//
//   lockstep_bench_checkpoint [MB] [--folder DIR] [--device gpu] [--rounds N]
//
// Copies and snapshots are compared by their fastest, steps by their medians. Goals: the step is delayed by at most 1.2
// times a copy of the state in memory, and steps meanwhile take at most 1.05 times the usual.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

struct Options {
  double megabytes = 500;
  std::string folder = "bench_checkpoints", device = "cpu";
  int rounds = 5;
};

constexpr std::int64_t kWidth = 1024;

/// With the two moments of Adam, the state is three times the weights.
nn::Sequential make_net(double megabytes) {
  const auto layers = static_cast<int>(megabytes * 1e6 / (3 * sizeof(float) * kWidth * (kWidth + 1)));
  nn::Sequential net;
  for (int k = 0; k < std::max(layers, 1); ++k) {
    net->push_back(nn::Linear(kWidth, kWidth));
    net->push_back(nn::Tanh());
  }
  return net;
}

double bytes_of(const ls::Snapshot& snapshot) {
  double bytes = 0;
  for (const auto& [name, tensor] : snapshot.shared) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// The time of one copy of all tensors into new memory.
double copy_seconds(const ls::Snapshot& snapshot) {
  const auto start = Clock::now();
  std::vector<torch::Tensor> copies;
  for (const auto& [name, tensor] : snapshot.shared) copies.push_back(tensor.clone());
  return seconds_since(start);
}

/// A training whose steps are timed.
class Training {
 public:
  explicit Training(const Options& options)
      : strategy_({.devices = std::vector{options.device + ":0"}, .seed = 1}),
        net_(strategy_.make([&] { return make_net(options.megabytes); })),
        optimizer_(strategy_.make_optimizer<torch::optim::Adam>(net_, torch::optim::AdamOptions(1e-4))),
        device_(options.device == "gpu" ? torch::kCUDA : torch::kCPU),
        rows_(torch::randn({64, kWidth}).to(device_)) {}

  /// Waits for the device, like a loop that shows its loss.
  double step() {
    const auto start = Clock::now();
    const auto losses = strategy_.run([&] {
      const auto loss = ls::average_loss((net_->forward(rows_) - rows_).square().mean(1));
      optimizer_.minimize(loss);
      return loss.detach();
    });
    static_cast<void>(strategy_.reduce(ls::ReduceOp::Sum, losses).item<double>());
    return seconds_since(start);
  }
  ls::Snapshot capture() { return ls::capture(strategy_, {{"model", net_}, {"optimizer", optimizer_}}); }
  void restore(const ls::Snapshot& snapshot) {
    ls::restore(strategy_, snapshot, {{"model", net_}, {"optimizer", optimizer_}});
  }

 private:
  ls::MirroredStrategy strategy_;
  ls::MirroredModule<nn::SequentialImpl> net_;
  ls::MirroredOptimizer<torch::optim::Adam> optimizer_;
  torch::Device device_;
  torch::Tensor rows_;
};

void print_goal(const char* what, double seen, double goal) {
  std::printf("%-44s %.3f, goal at most %.2f: %s\n", what, seen, goal, seen <= goal ? "reached" : "MISSED");
}

void measure(const Options& options) {
  constexpr int kSteps = 15;
  Training training(options);
  for (int k = 0; k < 3; ++k) training.step();
  const auto saving = std::make_unique<ls::train::CheckpointOptions>();  // g++ 12 wrongly warns about one on the stack
  ls::train::CheckpointManager manager(options.folder, *saving);
  std::vector<double> copies, late, usual, meanwhile, writing, loading, ratios;
  double bytes = 0;
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<double> before, during;
    for (int k = 0; k < kSteps; ++k) before.push_back(training.step());
    {
      const ls::Snapshot snapshot = training.capture();
      bytes = bytes_of(snapshot);
      copies.push_back(copy_seconds(snapshot));
    }
    const auto start = Clock::now();
    manager.save(round, training.capture());
    late.push_back(seconds_since(start));
    while (manager.is_busy()) during.push_back(training.step());
    writing.push_back(seconds_since(start));
    manager.wait();
    for (int k = 0; k < kSteps; ++k) before.push_back(training.step());  // the machine may be slower now than before
    usual.push_back(median(before));
    meanwhile.push_back(median(during));
    ratios.push_back(meanwhile.back() / usual.back());
    const auto load_start = Clock::now();
    training.restore(ls::train::read_checkpoint(ls::train::list_checkpoints(options.folder).back().path));
    loading.push_back(seconds_since(load_start));
    std::printf("round %d: step %.1f ms, while writing %.1f ms (%d steps in %.1f s), snapshot %.0f ms, copy %.0f ms\n",
                round + 1, 1e3 * usual.back(), 1e3 * meanwhile.back(), static_cast<int>(during.size()), writing.back(),
                1e3 * late.back(), 1e3 * copies.back());
    std::fflush(stdout);
  }
  std::printf("\nstate %.0f MB on %s; written in %.1f s; checked and loaded in %.2f s\n", bytes / 1e6,
              options.device.c_str(), median(writing), median(loading));
  print_goal("the step of the snapshot, in copies of the state", least(late) / least(copies), 1.2);
  print_goal("a step while it is written, in usual steps", median(ratios), 1.05);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    if (k + 1 < argc && word == "--folder") {
      options.folder = argv[++k];
    } else if (k + 1 < argc && word == "--device") {
      options.device = argv[++k];
    } else if (k + 1 < argc && word == "--rounds") {
      options.rounds = std::atoi(argv[++k]);
    } else if (std::atof(argv[k]) > 0) {
      options.megabytes = std::atof(argv[k]);
    } else {
      std::fprintf(stderr, "usage: %s [MB] [--folder DIR] [--device gpu] [--rounds N]\n", argv[0]);
      return 2;
    }
  }
  try {
    measure(options);
    std::filesystem::remove_all(options.folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
