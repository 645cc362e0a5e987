#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>

namespace lockstep::detail {

/// Looks once more at something of a replica when its function has returned.
class EndOfRun {
 public:
  virtual void end_of_run(std::size_t local_index) const = 0;

 protected:
  ~EndOfRun() = default;
};

/// The rows that each local replica gets of the batch that was given to `run`.
using StepRows = c10::SmallVector<std::int64_t, 16>;

/// What belongs to one replica's part of one run and to no other.
struct RunNotes {
  std::span<const std::int64_t> rows = {};  ///< of every local replica; empty where no batch was given
  bool has_counted_losses = false;          ///< average_loss has found the size by itself since the last backward
  c10::SmallVector<const EndOfRun*, 4> watchers = {};  ///< called on the replica's thread if its function returns
};

}  // namespace lockstep::detail
