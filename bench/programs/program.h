#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace lockstep::bench {

/// Which part of a step runs, to see where its time goes.
enum class Part {
  All,
  WithoutInput,  ///< always the same batch
  Compute,       ///< forward and backward of that batch; replicas wait for each other after each
  Apart,         ///< the same, ten at a time before replicas wait for each other
};

struct ProgramOptions {
  std::int64_t batch = 0;       ///< rows of all replicas; 0: the program's usual batch
  int replicas = 0;             ///< 0: plain LibTorch
  int threads = 0;              ///< the plain program uses; 0: all cores
  bool keep_memory = false;     ///< in the plain program, as Lockstep does
  Part part = Part::All;        ///< for programs with one network
  bool rows_one_by_one = true;  ///< Lockstep reads the dataset of torch::data, not tensors
};

/// One training step with the next batch.
using Step = std::function<void()>;

struct Program {
  std::int64_t batch;  ///< rows, as usual
  std::function<Step(const ProgramOptions&)> start;
};

/// The programs by name. Each is written twice, plain and with Lockstep, in the file that defines it.
const std::map<std::string, Program>& programs();

Program mnist();
Program vae();
Program lstm();
Program resnet();
Program augmented_resnet();
Program dcgan();
Program gpt();

}  // namespace lockstep::bench
