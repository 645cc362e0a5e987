#pragma once

#include <string>

namespace lockstep::app {

/// Prints what a checkpoint, a folder of checkpoints, an event file, a TFRecord or a safetensors file holds. Returns the exit
/// code; errors are thrown.
int inspect(const std::string& path);

/// Reads all of a checkpoint, of a folder of checkpoints, or of a file, and prints a line for each with what is wrong. Returns
/// kCheckpoint or kData if something is.
int verify(const std::string& path);

}  // namespace lockstep::app
