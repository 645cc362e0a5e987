#pragma once

#include <optional>
#include <string>

#include "lockstep/train/callback.h"
#include "lockstep/train/checkpoint/folder.h"

namespace lockstep::train::detail {

/// A callback that writes checkpoints from which its training can be resumed.
class LOCKSTEP_EXPORT CheckpointCallback : public Callback {
 public:
  virtual const std::string& folder() const = 0;
  /// Whether a training continues from its checkpoints without being asked to.
  virtual bool always_resumes() const = 0;
  /// The newest checkpoint that can be resumed; those of later steps will be replaced. For the chief.
  virtual std::optional<CheckpointEntry> newest(Strategy& strategy) = 0;
  /// Returns when all checkpoints are on the disk. Every worker must call it.
  virtual void finish(const Strategy& strategy) = 0;
};

}  // namespace lockstep::train::detail
