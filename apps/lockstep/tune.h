#pragma once

#include <string>
#include <vector>

namespace lockstep::app {

/// What `lockstep tune` was asked for.
struct TuneCommand {
  int rounds = 3;             ///< in which each number is measured once
  double seconds = 50;        ///< for all measurements
  std::vector<int> replicas;  ///< to try; empty: 1, 2, 4, ... and all cores
  bool remember = false;
  std::vector<std::string> program;
};

/// Runs the program with several numbers of replicas, a few steps each, and prints a table and the best. Returns the exit code. Throws
/// UsageError.
int tune(const TuneCommand& command);

}  // namespace lockstep::app
