#pragma once

#include <string>

namespace lockstep::app {

/// Prints what is right and what is wrong on this machine for the cluster in `tf_config_file` ("-": standard input;
/// empty: the environment). Returns the exit code.
int doctor(const std::string& tf_config_file);

}  // namespace lockstep::app
