// Times the matrix products of a training step with LibTorch's kernels and with Lockstep's own
// (MirroredOptions::fast_kernels), in turn:
//
//     lockstep_bench_products [replicas] [rows of the global batch] [size of a layer] [rounds]

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

namespace ls = lockstep;

constexpr int kLayers = 8;

/// One replica's weights, activations and gradients.
struct Layers {
  std::vector<at::Tensor> weights, inputs, slopes;
};

class Contestant {
 public:
  Contestant(const char* name, bool own, int replicas, std::int64_t rows, std::int64_t size)
      : name_(name), strategy_({.devices = ls::cpus(replicas), .fast_kernels = own}), layers_(strategy_.run([&] {
          Layers mine;
          for (int k = 0; k < kLayers; ++k) {
            mine.weights.push_back(at::randn({size, size}));
            mine.inputs.push_back(at::randn({rows / replicas, size}));
            mine.slopes.push_back(at::randn({rows / replicas, size}));
          }
          return mine;
        })) {}

  void measure() {
    const auto begin = std::chrono::steady_clock::now();
    strategy_.run(
        [](const Layers& mine) {
          for (std::size_t k = 0; k < kLayers; ++k) at::mm(mine.inputs[k], mine.weights[k].t());
          for (std::size_t k = 0; k < kLayers; ++k) {
            at::mm(mine.slopes[k], mine.weights[k]);
            at::mm(mine.slopes[k].t(), mine.inputs[k]);
          }
        },
        layers_);
    milliseconds_.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }

  void print(double operations) {
    std::sort(milliseconds_.begin(), milliseconds_.end());
    const auto at = [&](double q) {
      return milliseconds_[static_cast<std::size_t>(q * static_cast<double>(milliseconds_.size() - 1))];
    };
    std::printf("%-12s %8.1f ms (least %.1f, %.1f .. %.1f)  %6.0f GFLOP/s\n", name_, at(0.5), at(0), at(0.25), at(0.75),
                operations / at(0.5) / 1e6);
  }

  int threads() const { return strategy_.intra_op_threads(); }

 private:
  const char* name_;
  ls::MirroredStrategy strategy_;
  ls::PerReplica<Layers> layers_;
  std::vector<double> milliseconds_;
};

}  // namespace

int main(int count, char** words) {
  const auto number = [&](int place, int otherwise) { return count > place ? std::atoi(words[place]) : otherwise; };
  const int replicas = number(1, 2), rows = number(2, 1024), size = number(3, 2048), rounds = number(4, 15);
  if (replicas < 1 || rows < replicas || size < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: %s [replicas] [rows of the global batch] [size of a layer] [rounds]\n", words[0]);
    return 2;
  }
  ls::set_log_severity(ls::Severity::Warning);
  Contestant libtorch("LibTorch", false, replicas, rows, size), own("Lockstep", true, replicas, rows, size);
  std::printf("%d products of %d x %d weights and %d rows, %d replicas of %d threads, %d rounds that took turns\n",
              3 * kLayers, size, size, rows, replicas, own.threads(), rounds);
  libtorch.measure(), own.measure();
  Contestant* order[] = {&libtorch, &own};
  for (int round = 0; round < rounds; ++round, std::swap(order[0], order[1])) {
    for (Contestant* contestant : order) contestant->measure();
  }
  const double operations = 2.0 * 3 * kLayers * rows * size * size;
  for (Contestant* contestant : {&libtorch, &own}) contestant->print(operations);
}
