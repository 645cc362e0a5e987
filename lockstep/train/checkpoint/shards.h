#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/train/checkpoint/folder.h"

// A checkpoint that several workers write, each its part, to a folder that all of them see. A worker that has written its files
// leaves `worker-1.json`, a manifest of them, or `worker-1.failed` with the reason. The chief waits for these, lists all files in the
// manifest and gives the checkpoint its name.
namespace lockstep::train::detail {

/// One of the workers that write a checkpoint. A checkpoint of one worker has files without numbers.
struct Shard {
  int worker = 0, workers = 1;
};

/// What a worker writes of what it has captured: the entries of its replicas; of the others, which all workers have, so many that
/// each writes about as many bytes; on the chief all texts. Tensors are not cut.
Snapshot share_of(Snapshot captured, const Shard& shard);

/// How much space the files of a snapshot need.
std::uint64_t bytes_to_write(const Snapshot& snapshot);

/// Writes the files of a share into the folder of an unfinished checkpoint: "model.0-of-2.safetensors", "texts.json".
std::vector<CheckpointFile> write_files(const Snapshot& share, const std::string& folder, const Shard& shard = {});

/// Writes the files of a worker that is not the chief, and what the chief waits for.
void write_part(const Snapshot& share, const std::string& folder, const Shard& shard);
/// The files of another worker's part. Unavailable, with its reason, if it could not write them; DeadlineExceeded if they are not there
/// in time, or a while after `is_abandoned`.
std::vector<CheckpointFile> take_part(const std::string& folder, int worker, const Deadline& deadline,
                                      const std::atomic<bool>& is_abandoned);

}  // namespace lockstep::train::detail
