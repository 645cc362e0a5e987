// Trains one of the programs of this folder, plain or with Lockstep, and prints how long its steps took.
//
//   lockstep_bench_programs mnist --replicas 2
//   lockstep_bench_programs mnist --plain --threads 8 --batch 32
//
// With --serve it reads numbers of steps and measures each as it arrives, so that programs can take turns
// (speedups.py).

#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "program.h"

namespace lockstep::bench {

const std::map<std::string, Program>& programs() {
  static const std::map<std::string, Program> all = {{"mnist", mnist()},
                                                     {"vae", vae()},
                                                     {"lstm", lstm()},
                                                     {"resnet", resnet()},
                                                     {"resnet_augmented", augmented_resnet()},
                                                     {"dcgan", dcgan()},
                                                     {"gpt", gpt()}};
  return all;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Command {
  std::string program;
  ProgramOptions options;
  bool serve = false;
  int steps = 20;
};

constexpr const char* kUsage =
    "usage: lockstep_bench_programs mnist|vae|lstm|resnet|resnet_augmented|dcgan|gpt [--batch N] [--steps N] [--serve]\n"
    "       [--part all|without_input|compute|apart]\n"
    "       (--plain [--threads N] [--keep-memory] | --replicas R [--from-tensors])\n";

const std::map<std::string, Part>& parts() {
  static const std::map<std::string, Part> all = {
      {"all", Part::All}, {"without_input", Part::WithoutInput}, {"compute", Part::Compute}, {"apart", Part::Apart}};
  return all;
}

bool parse(int argc, char** argv, Command& command) {
  const auto number = [&](int& i) { return ++i < argc ? std::atoi(argv[i]) : 0; };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--batch")
      command.options.batch = number(i);
    else if (word == "--plain")
      command.options.replicas = 0;
    else if (word == "--replicas")
      command.options.replicas = number(i);
    else if (word == "--threads")
      command.options.threads = number(i);
    else if (word == "--steps")
      command.steps = number(i);
    else if (word == "--keep-memory")
      command.options.keep_memory = true;
    else if (word == "--from-tensors")
      command.options.rows_one_by_one = false;
    else if (word == "--part") {
      const auto part = ++i < argc ? parts().find(argv[i]) : parts().end();
      if (part == parts().end()) return false;
      command.options.part = part->second;
    } else if (word == "--serve")
      command.serve = true;
    else if (command.program.empty() && programs().contains(word))
      command.program = word;
    else
      return false;
  }
  return !command.program.empty() && command.options.batch >= 0 && command.options.replicas >= 0 && command.steps > 0;
}

void measure(const Command& command, const Step& step, int steps) {
  const auto start = Clock::now();
  for (int k = 0; k < steps; ++k) step();
  const double seconds = seconds_since(start);
  const std::int64_t rows = command.options.batch * steps * (command.options.part == Part::Apart ? 10 : 1);
  std::cout << "{\"program\": \"" << command.program << "\", \"steps\": " << steps << ", \"seconds\": " << seconds
            << ", \"samples_per_s\": " << static_cast<double>(rows) / seconds << "}" << std::endl;
}

int run(int argc, char** argv) {
  Command command;
  if (!parse(argc, argv, command)) {
    std::cerr << kUsage;
    return 2;
  }
  set_log_severity(Severity::Warning);
  const Program& program = programs().at(command.program);
  if (command.options.batch == 0) command.options.batch = program.batch;
  const Step step = program.start(command.options);
  for (int k = 0; k < 3; ++k) step();
  if (!command.serve) {
    measure(command, step, command.steps);
    return 0;
  }
  std::cout << "ready" << std::endl;
  for (int steps = 0; std::cin >> steps;) measure(command, step, steps);
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::run(argc, argv); }
