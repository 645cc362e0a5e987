// The overhead of `fit` over a handwritten loop: with a progress bar, three metrics and a CSV file.
//
//   lockstep_bench_fit              a step of about 5 ms and an empty one
//   lockstep_bench_fit --rounds 31  more turns
//
// The two loops take turns on the same batches. Each line has the medians of both, per step, by the clock and by the
// processor time of the training thread, which other programs on the machine disturb less; and the median of the turns'
// ratios and differences.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

namespace {

struct Rows {
  Tensor x, y;
};

struct Seconds {
  double wall = 0, thread = 0;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Per step.
Seconds measured(int steps, const std::function<void()>& loop) {
  const auto start = std::chrono::steady_clock::now();
  const double thread_start = thread_seconds();
  loop();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count() / steps, (thread_seconds() - thread_start) / steps};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void report(const char* name, const std::vector<Seconds>& by_hand, const std::vector<Seconds>& by_fit) {
  const auto line = [&](const char* clock, double Seconds::*of) {
    std::vector<double> hand, fit, ratio, difference;
    for (std::size_t i = 0; i < by_hand.size(); ++i) {
      hand.push_back(1e6 * (by_hand[i].*of));
      fit.push_back(1e6 * (by_fit[i].*of));
      ratio.push_back(fit[i] / hand[i]);
      difference.push_back(fit[i] - hand[i]);
    }
    std::printf("%-20s %-6s by hand %9.1f us/step, fit %9.1f, ratio %.4f, difference %8.1f us\n", name, clock,
                median(hand), median(fit), median(ratio), median(difference));
  };
  line("clock", &Seconds::wall);
  line("thread", &Seconds::thread);
  std::fflush(stdout);
}

/// Batches without an end, and the loops over them.
struct Program {
  Program(std::int64_t width, std::int64_t batch, bool with_metrics = true)
      : strategy({.devices = ls::cpus(1), .intra_op_threads = 1, .seed = 3}),
        net(strategy.make([=] {
          return nn::Sequential(nn::Linear(width, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                                nn::Linear(width, 10));
        })),
        optimizer(strategy.make_optimizer<torch::optim::SGD>(net, 0.01)),
        batches(strategy.distribute(
            ls::data::from_tensors(Rows{torch::randn({batch, width}), torch::randint(0, 10, {batch}, torch::kLong)})
                .repeat())),
        model(net, optimizer, {.loss = ls::train::losses::cross_entropy(), .metrics = metrics(with_metrics)}) {}

  static std::vector<ls::train::MetricPtr> metrics(bool with_metrics) {
    if (!with_metrics) return {};
    return {ls::train::metrics::accuracy(), ls::train::metrics::accuracy({.name = "top_3", .top_k = 3}),
            ls::train::metrics::perplexity()};
  }
  ls::train::FitOptions<Rows> fit_options(int steps, bool with_bar = true) {
    return {.epochs = 1,
            .steps_per_epoch = steps,
            .callbacks = {ls::train::csv_logger({.path = csv})},
            .verbose = with_bar ? ls::train::Verbose::Bar : ls::train::Verbose::Silent,
            .out = &nowhere};
  }
  /// `step` on each of so many batches.
  void by_hand(int steps, const std::function<void(const Rows&)>& step) {
    auto iterator = batches.iterator();
    for (int i = 0; i < steps; ++i) strategy.run(step, *iterator.next());
  }
  void train(const Rows& mine) {
    optimizer.minimize(
        ls::average_loss(torch::cross_entropy_loss(net->forward(mine.x), mine.y, {}, at::Reduction::None)));
  }

  ls::MirroredStrategy strategy;
  ls::MirroredModule<nn::SequentialImpl> net;
  ls::MirroredOptimizer<torch::optim::SGD> optimizer;
  ls::DistributedDataset<Rows> batches;
  ls::train::Model model;
  std::ofstream nowhere{"/dev/null"};
  std::string csv = (std::filesystem::temp_directory_path() / "lockstep_bench_fit.csv").string();
};

/// After one uncounted turn.
void compare(const char* name, int rounds, int steps, const std::function<void()>& by_hand,
             const std::function<void()>& by_fit) {
  std::vector<Seconds> hand, fit;
  by_hand();
  by_fit();
  for (int round = 0; round < rounds; ++round) {
    hand.push_back(measured(steps, by_hand));
    fit.push_back(measured(steps, by_fit));
  }
  report(name, hand, fit);
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 15;
  std::string which;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (word == "step" || word == "parts" || word == "empty" || word == "means") {
      which = word;
    } else {
      std::fprintf(stderr, "usage: lockstep_bench_fit [step|parts|empty|means] [--rounds N]\n");
      return 2;
    }
  }
  const auto step = [&](const char* name, bool with_metrics, bool with_bar) {
    Program program(/*width=*/512, /*batch=*/128, with_metrics);
    constexpr int kSteps = 50;
    compare(
        name, rounds, kSteps, [&] { program.by_hand(kSteps, [&](const Rows& mine) { program.train(mine); }); },
        [&] { program.model.fit(program.batches, program.fit_options(kSteps, with_bar)); });
  };
  if (which.empty() || which == "step") step("5 ms step", true, true);
  if (which.empty() || which == "parts") {
    step("no bar", true, false);
    step("no metrics, no bar", false, false);
  }
  const auto empty = [&](const char* name, const ls::train::StepLogs& logs) {
    Program program(/*width=*/8, /*batch=*/8);
    program.model.set_train_step([&](const Rows&) { return logs; });
    constexpr int kSteps = 3000;
    compare(
        name, rounds, kSteps, [&] { program.by_hand(kSteps, [](const Rows&) {}); },
        [&] { program.model.fit(program.batches, program.fit_options(kSteps)); });
  };
  const Tensor losses = torch::rand({8});
  if (which.empty() || which == "empty") empty("empty step", {});
  if (which.empty() || which == "means") empty("empty step, 3 means", {{"loss", losses}, {"a", losses}, {"b", losses}});
  return 0;
}
