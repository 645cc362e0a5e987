#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/train/checkpoint/folder.h"

// Snapshots on the disk (docs/checkpoints.md).
//
//     ls::train::write_checkpoint(ls::capture(strategy, parts), "run/before-the-change");
//     ls::restore(strategy, ls::train::read_checkpoint("run/before-the-change"), parts);
//
// With several workers, `gather` the snapshot first and write it on the chief.
namespace lockstep::train {

/// What a checkpoint's manifest says beside the snapshot.
struct CheckpointInfo {
  std::int64_t step = 0;                       ///< training steps so far
  std::map<std::string, double> metrics = {};  ///< to know the best checkpoint by
};

/// Writes a folder with safetensors files, which Python reads, and a manifest. It appears at once when all of its bytes are on the
/// disk; one of that name is replaced. ResourceExhausted, before anything is written, if the disk has no space for it.
LOCKSTEP_EXPORT void write_checkpoint(const Snapshot& snapshot, const std::string& path,
                                      const CheckpointInfo& info = {});

/// Reads a checkpoint back. Its tensors are mapped memory that is read when it is first used. DataLoss, with one line that
/// names what is wrong, if anything in it has changed.
LOCKSTEP_EXPORT Snapshot read_checkpoint(const std::string& path);

}  // namespace lockstep::train
