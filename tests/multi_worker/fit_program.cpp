// A worker that trains on the digits with `fit`: `fit_program REPLICAS [what happens on worker 1 [FOLDER [sharded]]]`. The cluster comes from
// TF_CONFIG; without it, it is one worker. Prints the history and a digest of the weights, which must be the same for every W x R.
// With a folder, it writes checkpoints and a CSV file there, and continues from them. "resize" changes the width of its terminal.

#include <signal.h>
#include <sys/resource.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "../../examples/digits.h"
#include "lockstep/lockstep.h"
#include "lockstep/train.h"
#include "tests/support/replicas.h"
#include "tests/support/terminal.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using ls::train::Decision;

namespace {

nn::Sequential make_net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::MaxPool2d(2), nn::Flatten(),
                        nn::Dropout(0.5), nn::Linear(16 * 4 * 4, 64), nn::ReLU(), nn::Linear(64, 10));
}

/// Executed by worker 1 only.
ls::train::CallbackPtr on_worker_1(const std::string& what, std::function<void()> set_rate) {
  const auto is_here = [](const ls::train::Training& t) { return t.strategy.worker_id() == 1; };
  ls::train::LambdaOptions of{.name = "of_worker_1"};
  of.decides_in_batches = what == "stop_in_epoch";
  of.batch_ends = [=](const ls::train::Training& t) -> Decision {
    if (!is_here(t) || t.step != 8) return {};
    if (what == "stop_in_epoch") return {.stop = true, .reason = "worker 1 has seen enough"};
    if (what == "throw_in_epoch") throw std::runtime_error("worker 1 cannot continue");
    return {};
  };
  of.epoch_begins = [=](const ls::train::Training& t) -> Decision {
    if (is_here(t) && t.epoch == 1 && what == "own_rate") set_rate();
    return {};
  };
  of.epoch_ends = [=](const ls::train::Training& t, const ls::train::Logs&) -> Decision {
    if (!is_here(t) || t.epoch != 1) return {};
    if (what == "stop") return {.stop = true, .reason = "worker 1 has seen enough"};
    if (what == "rate") return {.learning_rate = 0.5e-3};
    if (what == "save") return {.save = true};
    if (what == "throw") throw std::runtime_error("worker 1 cannot continue");
    return {};
  };
  of.save = [](const ls::train::Training& t) { std::printf("saves after step %d\n", static_cast<int>(t.step)); };
  return ls::train::lambda(std::move(of));
}

/// The step in "die_at 8"; -1 for other scenarios.
std::int64_t step_of(const std::string& prefix, const std::string& what) {
  return what.rfind(prefix, 0) == 0 ? std::stoll(what.substr(prefix.size())) : -1;
}

/// "die_at 8": the last worker ends there as if it were killed, before the step is saved. "term_at 8": it receives
/// SIGTERM. "full": from the second epoch on, the chief's disk rejects files of more than some bytes. "often" saves
/// after each step.
ls::train::CallbackPtr dying(const std::string& what) {
  const std::int64_t dies = step_of("die_at ", what), terminated = step_of("term_at ", what);
  return ls::train::lambda({.name = "dying",
                            .train_begins = [](const ls::train::Training&) -> Decision {
                              std::printf("begins\n");
                              std::fflush(stdout);
                              return {};
                            },
                            .batch_ends = [=](const ls::train::Training& t) -> Decision {
                              if (what == "full" && t.strategy.is_chief() && t.step == 7) {
                                constexpr rlimit kSmall{.rlim_cur = 20'000, .rlim_max = 20'000};
                                ::setrlimit(RLIMIT_FSIZE, &kSmall);
                              }
                              if (t.strategy.worker_id() + 1 != t.strategy.num_workers()) return {};
                              if (t.step == dies) ::_exit(9);
                              if (t.step == terminated) ::raise(SIGTERM);
                              return {};
                            }});
}

ls::train::CallbackPtr resizing() {
  return ls::train::lambda({.name = "resizing", .batch_ends = [](const ls::train::Training& t) -> Decision {
                              const std::map<std::int64_t, int> widths{{2, 40}, {5, 200}, {9, 60}, {10, 45}, {15, 80}};
                              if (widths.contains(t.step)) ls::resize_terminal(widths.at(t.step));
                              return {};
                            }});
}

int run(int replicas, const std::string& what, const std::string& folder, bool sharded) {
  ls::MultiWorkerMirroredStrategy strategy(
      {.devices = ls::test_devices(replicas), .intra_op_threads = 1, .seed = 7, .deterministic = true});
  Digits digits = load_digits();
  Digits held_out = digits.pick(torch::arange(1000, 1103));
  digits = digits.pick(torch::arange(5 * 52 + 17));  // the last batch is short
  if (what == "nan") digits.images[200][0][3][3] = std::nan("");
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(2e-3));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(),
                          .metrics = {ls::train::metrics::accuracy(), ls::train::metrics::f_beta({.classes = 10}),
                                      ls::train::metrics::perplexity()},
                          .accumulate = what == "ema" ? std::optional(4) : std::nullopt});
  std::vector<ls::train::CallbackPtr> callbacks = {on_worker_1(what, [&] { optimizer.set_learning_rate(0.3); })};
  const auto averages = ls::train::ema(net, {.decay = 0.9});
  if (what == "ema") callbacks.push_back(averages);
  if (what == "nan") callbacks.push_back(ls::train::terminate_on_nan());
  if (what == "early") callbacks.push_back(ls::train::early_stopping({.min_delta = 10}));
  if (what == "resize") callbacks.push_back(resizing());
  if (!folder.empty()) {
    callbacks.push_back(ls::train::csv_logger({.path = folder + "/log.csv"}));
    callbacks.push_back(ls::train::model_checkpoint({.folder = folder + "/checkpoints",
                                                     .every = {.steps = what == "often" ? 1 : 4},
                                                     .checkpoints = {.sharded = sharded}}));
    callbacks.push_back(dying(what));
  }
  const auto history = model.fit(ls::data::from_tensor_slices(digits).shuffle(digits.count()).batch(52),
                                 {.epochs = 3,
                                  .validation = ls::data::from_tensor_slices(held_out).batch(25),
                                  .callbacks = callbacks,
                                  .resume = !folder.empty()});
  for (const auto& logs : history.epochs) {
    std::printf("history");
    for (const auto& [name, value] : logs) std::printf(" %s=%a", name.c_str(), value);
    std::printf("\n");
  }
  const auto guesses = model.predict(ls::data::from_tensor_slices(held_out).batch(25));
  std::printf("predicted %d rows, sum of the classes %d\n", static_cast<int>(guesses.size(0)),
              guesses.argmax(1).sum().item<int>());
  std::printf("stopped: %s\n", history.stopped.c_str());
  std::printf("steps %d, rate %a\n", static_cast<int>(optimizer.steps()), optimizer.learning_rate());
  if (what == "ema") averages->swap();
  std::printf("weights %016llx\n", static_cast<unsigned long long>(ls::combine(optimizer.digests())));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : "", argc > 4);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
