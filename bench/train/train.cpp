// Trains one of three networks with a plain LibTorch loop or with Lockstep, and prints how long the steps took.
//
//   lockstep_bench_train mlp --batch 256 --plain
//   lockstep_bench_train cnn --batch 256 --replicas 2 --channels-last
//
// With --cluster it is one worker of the cluster in TF_CONFIG, each with R replicas, which train together;
// --alone-first then also measures the steps that each worker takes by itself at the same time. Worker 0 prints.
//
// Prints one JSON line per measurement. With --serve it reads numbers of steps from its input and measures each as it
// arrives, so that several programs can take turns (bench/train/compare.py).

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>

#include "lockstep/base/cores.h"
#include "lockstep/base/keep_memory.h"
#include "lockstep/strategy/huge_blocks.h"
#include "models.h"

namespace ls = lockstep;

namespace {

struct Options {
  std::string model;
  std::int64_t batch = 256;
  int replicas = 0;                  ///< 0: plain LibTorch
  int threads = ls::usable_cores();  ///< for the plain loop
  bool keep_memory = false;          ///< for the plain loop
  bool channels_last = false;
  bool libtorch_kernels = false;
  bool serve = false;
  bool cluster = false;      ///< one worker of several
  bool alone_first = false;  ///< and its steps without the others
  int steps = 10;
};

constexpr const char* kUsage =
    "usage: lockstep_bench_train mlp|cnn|wide [--batch N] [--plain [--threads N] [--keep-memory] | --replicas R "
    "[--libtorch-kernels] [--cluster [--alone-first]]]\n"
    "                            [--channels-last] [--steps N] [--serve]\n";

bool parse(int argc, char** argv, Options& options) {
  const auto number = [&](int& i) { return ++i < argc ? std::atoi(argv[i]) : 0; };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--batch") {
      options.batch = number(i);
    } else if (word == "--plain") {
      options.replicas = 0;
    } else if (word == "--replicas") {
      options.replicas = number(i);
    } else if (word == "--threads") {
      options.threads = number(i);
    } else if (word == "--steps") {
      options.steps = number(i);
    } else if (word == "--keep-memory") {
      options.keep_memory = true;
    } else if (word == "--channels-last") {
      options.channels_last = true;
    } else if (word == "--libtorch-kernels") {
      options.libtorch_kernels = true;
    } else if (word == "--cluster") {
      options.cluster = true;
    } else if (word == "--alone-first") {
      options.alone_first = true;
    } else if (word == "--serve") {
      options.serve = true;
    } else if (options.model.empty() && word.front() != '-') {
      options.model = word;
    } else {
      return false;
    }
  }
  return !lockstep::bench::make_model(options.model).example.empty() && options.batch > 0 && options.replicas >= 0 &&
         options.threads > 0 && options.steps > 0;
}

struct Batch {
  torch::Tensor x, y;
};

Batch random_batch(const Options& options, const std::vector<std::int64_t>& example, std::int64_t rows) {
  std::vector<std::int64_t> shape = {rows};
  shape.insert(shape.end(), example.begin(), example.end());
  Batch batch{torch::randn(shape), torch::randint(0, 10, {rows})};
  if (options.channels_last && batch.x.dim() == 4) batch.x = batch.x.contiguous(torch::MemoryFormat::ChannelsLast);
  return batch;
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.01).momentum(0.9); }

using Step = std::function<void()>;

/// The loop as LibTorch's documentation writes it.
Step plain_step(const Options& options) {
  if (options.keep_memory) {  // as MirroredOptions::keep_memory does
    ls::keep_freed_memory();
    ls::keep_huge_blocks();
  }
  torch::set_num_threads(options.threads);
  torch::manual_seed(0);
  auto [net, example] = lockstep::bench::make_model(options.model);
  if (options.channels_last) {
    for (auto& p : net->parameters()) {
      if (p.dim() == 4) p.set_data(p.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
  auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), sgd());
  const Batch batch = random_batch(options, example, options.batch);
  return [=, net = net]() mutable {
    optimizer->zero_grad();
    auto loss = torch::cross_entropy_loss(net->forward(batch.x), batch.y);
    loss.backward();
    optimizer->step();
  };
}

std::shared_ptr<ls::Strategy> make_strategy(const Options& options) {
  torch::manual_seed(0);
  const auto kernels = options.libtorch_kernels ? std::optional(false) : std::nullopt;
  if (options.cluster)
    return std::make_shared<ls::MultiWorkerMirroredStrategy>(
        ls::MultiWorkerOptions{.devices = ls::cpus(options.replicas), .fast_kernels = kernels});
  return std::make_shared<ls::MirroredStrategy>(
      ls::MirroredOptions{.devices = ls::cpus(options.replicas), .fast_kernels = kernels});
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The time of a step until there are enough gradients to be worth sending.
struct FirstGradients {
  static constexpr std::size_t kBytes = 1 << 20;
  std::chrono::steady_clock::time_point start = {};
  std::size_t bytes = 0;
  std::vector<double> seconds = {};

  void begin() {
    start = std::chrono::steady_clock::now();
    bytes = 0;
  }
  void arrived(std::size_t more) {
    if (bytes < kBytes && bytes + more >= kBytes) seconds.push_back(seconds_since(start));
    bytes += more;
  }
};

Step lockstep_step(const Options& options, const std::shared_ptr<ls::Strategy>& strategy,
                   FirstGradients* first = nullptr) {
  auto model = strategy->make([name = options.model] { return lockstep::bench::make_model(name).net; },
                              {.channels_last = options.channels_last});
  auto optimizer = strategy->make_optimizer<torch::optim::SGD>(model, sgd());
  const auto example = lockstep::bench::make_model(options.model).example;
  auto batch = strategy->values_from_function([&](ls::ValueContext context) {
    const std::int64_t k = context.replica_id_in_sync_group, n = context.num_replicas_in_sync;
    return random_batch(options, example, options.batch * (k + 1) / n - options.batch * k / n);
  });
  if (first) {
    for (const auto& p : model.replica(0)->parameters())
      p.register_hook([first](const torch::Tensor& gradient) { first->arrived(gradient.nbytes()); });
  }
  return [=, global = options.batch]() mutable {
    if (first) first->begin();
    strategy->run(
        [&](const Batch& mine) {
          const auto losses = torch::cross_entropy_loss(model->forward(mine.x), mine.y, {}, torch::Reduction::None);
          optimizer.minimize(ls::average_loss(losses, global));
        },
        batch);
  };
}

double median(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

/// Seconds of the median of `steps` steps.
double median_step(const Step& step, int steps) {
  std::vector<double> seconds;
  for (int k = 0; k < steps + 3; ++k) {
    const auto start = std::chrono::steady_clock::now();
    step();
    if (k >= 3) seconds.push_back(seconds_since(start));
  }
  return median(seconds);
}

/// One worker of several. The first reads the number of steps, and passes it on.
void train_together(const Options& options) {
  auto strategy = make_strategy(options);
  if (options.alone_first) {
    // One replica's share of the batch, on as many threads, on every worker at the same time.
    Options alone = options;
    alone.cluster = false;
    alone.batch = options.batch / strategy->num_workers();
    auto own = std::make_shared<ls::MirroredStrategy>(ls::MirroredOptions{
        .devices = ls::cpus(options.replicas),
        .intra_op_threads = static_cast<ls::MultiWorkerMirroredStrategy&>(*strategy).intra_op_threads(),
        .fast_kernels = !options.libtorch_kernels});  // as several replicas have them
    strategy->barrier();
    FirstGradients first;
    const double compute = median_step(lockstep_step(alone, own, &first), options.steps);
    strategy->barrier();
    const double together = median_step(lockstep_step(options, strategy), options.steps);
    if (strategy->is_chief())
      std::cout << "{\"model\": \"" << options.model << "\", \"compute_ms\": " << 1e3 * compute
                << ", \"first_ms\": " << 1e3 * median(first.seconds) << ", \"step_ms\": " << 1e3 * together << "}"
                << std::endl;
    return;
  }
  const Step step = lockstep_step(options, strategy);
  for (int k = 0; k < 3; ++k) step();
  const bool is_chief = strategy->is_chief();
  if (is_chief) std::cout << "ready" << std::endl;
  for (;;) {
    int steps = 0;
    if (is_chief && !(std::cin >> steps)) steps = 0;
    steps = strategy->broadcast(steps);
    if (steps == 0) return;
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < steps; ++k) step();
    const double seconds = seconds_since(start);
    if (is_chief)
      std::cout << "{\"steps\": " << steps << ", \"seconds\": " << seconds
                << ", \"samples_per_s\": " << static_cast<double>(options.batch) * steps / seconds << "}" << std::endl;
  }
}

void measure(const Options& options, const Step& step, int steps) {
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < steps; ++k) step();
  const double seconds = seconds_since(start);
  std::cout << "{\"model\": \"" << options.model << "\", \"replicas\": " << options.replicas << ", \"steps\": " << steps
            << ", \"seconds\": " << seconds
            << ", \"samples_per_s\": " << static_cast<double>(options.batch) * steps / seconds << "}" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::cerr << kUsage;
    return 2;
  }
  ls::set_log_severity(ls::Severity::Warning);
  if (options.cluster) {
    train_together(options);
    return 0;
  }
  const Step step = options.replicas == 0 ? plain_step(options) : lockstep_step(options, make_strategy(options));
  for (int k = 0; k < 3; ++k) step();
  if (!options.serve) {
    measure(options, step, options.steps);
    return 0;
  }
  std::cout << "ready" << std::endl;
  for (int steps = 0; std::cin >> steps;) measure(options, step, steps);
}
