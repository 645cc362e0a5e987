#pragma once

#include <string>

namespace lockstep::app {

/// Prints the contents of a checkpoint, a folder of checkpoints, an event file, a TFRecord or a safetensors file.
/// Returns the exit code; errors are thrown.
int inspect(const std::string& path);

/// Reads all of a checkpoint, of a folder of checkpoints, or of a file, and prints a line for each damaged one. Returns
/// kCheckpoint or kData if there are any.
int verify(const std::string& path);

}  // namespace lockstep::app
