// A program for `lockstep tune`: `tuned_program loop|fit|... FOLDER [STEPS]`. It writes to the folder all that Lockstep can write, in
// every step, and a file of its own when it exits.

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/lockstep.h"
#include "lockstep/train.h"
#include "lockstep/train/logs/event_file.h"
#include "lockstep/train/logs/line_logs.h"
#include "tests/support/small_net.h"

namespace ls = lockstep;

namespace {

std::string folder;

const ls::Batch kBatch{torch::ones({12, 9}), torch::zeros({12}, torch::kLong)};

/// Waits for the rows of a replica, so that their number decides how long a step takes, on any machine.
struct SlowNet : ls::SmallNet {
  at::Tensor forward(const at::Tensor& rows) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2) * rows.size(0));
    return ls::SmallNet::forward(rows);
  }
};

struct Training {
  explicit Training(std::optional<std::vector<std::string>> devices) : strategy({.devices = std::move(devices)}) {}

  void step() {
    strategy.run([&](const at::Tensor& rows) { optimizer.minimize(ls::average_loss(net->forward(rows).square())); },
                 strategy.split(kBatch.rows));
  }
  void evaluate() {
    strategy.run([&](const at::Tensor& rows) { net->forward(rows); }, strategy.split(kBatch.rows));
  }

  ls::MirroredStrategy strategy;
  ls::MirroredModule<SlowNet> net = strategy.make<SlowNet>();
  ls::MirroredOptimizer<torch::optim::SGD> optimizer = strategy.make_optimizer<torch::optim::SGD>(net, 0.01);
};

void loop(int steps) {
  Training training(ls::cpus(3));
  ls::save(folder + "/initial.safetensors", training.net);
  ls::train::CheckpointManager checkpoints(folder + "/checkpoints");
  std::vector<ls::NamedState> parts = {{"model", training.net}, {"optimizer", training.optimizer}};
  std::int64_t first = 0;
  if (const auto newest = checkpoints.resume()) {
    ls::restore(training.strategy, ls::train::read_checkpoint(newest->path), parts);
    first = newest->step;
  }
  ls::train::CsvLog csv(folder + "/log.csv", {.key = "step", .resume_after = first});
  ls::train::JsonLinesLog json(folder + "/log.json", {.key = "step", .resume_after = first});
  ls::train::EventFile events(folder + "/events");
  for (std::int64_t step = first + 1; step <= first + steps; ++step) {
    training.step();
    training.evaluate();
    checkpoints.save(step, ls::capture(training.strategy, parts));
    ls::train::write_checkpoint(ls::capture(training.strategy, parts), folder + "/by_hand", {.step = step});
    ls::save(folder + "/last.safetensors", training.net, training.optimizer);
    csv.write(step, {{"loss", 1}});
    json.write(step, {{"loss", 1}});
    events.scalar("loss", step, 1);
    events.flush();
  }
}

void fit(int steps) {
  Training training(std::nullopt);
  ls::train::Model model(training.net, training.optimizer, {.loss = ls::train::losses::cross_entropy()});
  const auto batches =
      ls::data::from_tensor_slices(std::pair{kBatch.rows, kBatch.labels}).batch(12).repeat(std::max(2, steps / 2));
  model.fit(batches,
            {.epochs = 2,
             .callbacks = {ls::train::csv_logger({.path = folder + "/log.csv"}),
                           ls::train::json_lines_logger({.path = folder + "/log.json"}),
                           ls::train::tensor_board({.folder = folder + "/events"}),
                           ls::train::backup_and_restore({.folder = folder + "/backup", .every = {.steps = 1}}),
                           ls::train::model_checkpoint({.folder = folder + "/checkpoints", .every = {.steps = 1}})},
             .resume = true});
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what = argc > 1 ? argv[1] : "";
  folder = argc > 2 ? argv[2] : ".";
  const int steps = argc > 3 ? std::atoi(argv[3]) : 1'000'000;
  std::atexit([] { std::ofstream(folder + "/exit") << "done"; });
  std::cout << "this is " << what << std::endl;
  if (what == "loop") {
    loop(steps);
  } else if (what == "fit") {
    fit(steps);
  } else if (what == "remembered") {
    Training training(ls::best_cpus({.name = "a small net"}));
    std::cout << training.strategy.num_replicas_in_sync() << " replicas" << std::endl;
    for (int k = 0; k < steps; ++k) training.step();
  } else if (what == "two") {
    Training training(ls::cpus(1));
    if (training.strategy.num_replicas_in_sync() > 2) throw std::runtime_error("more than two replicas are too many");
    for (int k = 0; k < steps; ++k) training.step();
  } else if (what == "crash") {
    Training training(ls::cpus(1));
    for (int k = 0; k < steps; ++k) {
      if (k == 3 && training.strategy.num_replicas_in_sync() > 2) throw std::runtime_error("out of memory");
      training.step();
    }
  } else if (what == "names") {
    Training training(ls::best_cpus({.name = "a small net"})), other(ls::best_cpus({.name = "another net"}));
    for (int k = 0; k < steps; ++k) training.step();
  } else if (what == "gpu") {
    Training training(ls::gpus(1));
  } else if (what == "workers") {
    const ls::MultiWorkerMirroredStrategy strategy;
  } else if (what == "no_step") {
    Training training(ls::cpus(1));
    training.evaluate();
  } else if (what == "never") {
    for (;;) ::sleep(1);
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
