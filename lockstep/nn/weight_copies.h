#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// Which replicas use which copy of a model's weights: those on one device share one. Each replica updates the elements
/// that it owns in its own copy, and then writes them to the others.
struct WeightCopies {
  bool is_mixed = false;                ///< on CPUs and GPUs: gradients and weights are copied by LibTorch
  bool in_reach = true;                 ///< kernels of each GPU can read and write the memory of all of them
  std::vector<std::size_t> of_replica;  ///< the copy that each replica uses
  std::vector<std::size_t> first;       ///< per copy: the first replica that uses it; the first copy is replica 0's

  /// How many copies there are; whether two replicas work on the same one.
  std::size_t count() const { return first.size(); }
  bool share(std::size_t a, std::size_t b) const { return of_replica[a] == of_replica[b]; }
};

/// `devices`: one per replica. `apart`: as if each were a separate device.
LOCKSTEP_EXPORT WeightCopies plan_weight_copies(const std::vector<at::Device>& devices, bool apart);

/// "copy 0: replicas 0 1" and so on, one line per copy.
LOCKSTEP_EXPORT std::string to_string(const WeightCopies& copies);

}  // namespace lockstep
