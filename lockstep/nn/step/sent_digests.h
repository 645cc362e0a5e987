#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/digest.h"

namespace lockstep::gpu {
class Arrival;
}

// Digests of replicas on GPUs: computed there and sent to the host while training goes on, and compared a call later.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// What a replica held after a step.
struct SentDigests {
  std::int64_t step = 0;
  std::vector<TensorDigest> known;  ///< of what the host has
  std::vector<std::string> names;
  at::Tensor values;                      ///< a number of 64 bits each, in pinned memory
  std::shared_ptr<gpu::Arrival> arrival;  ///< of these; null where there are none
};

/// After a step: leaves them in `mine` if it is time to compare, and waits for nothing.
void send_due_digests(const OptimizerCore& core, ReplicaPart& mine);

/// Waits for what the calling replica has sent, so that all can compare it when they have met.
void receive_digests(const ReplicaPart& mine);
/// Compares what all replicas have sent: in a meeting, or while none runs. Throws DataLoss where they differ.
void require_equal_digests(const OptimizerCore& core);
/// Both, and forgets them, while no replica runs.
void settle_digests(const OptimizerCore& core);

}  // namespace lockstep::detail
