#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/digest.h"

namespace lockstep {

/// Of the elements, in the order of their indices: the memory format does not count. On any device.
LOCKSTEP_EXPORT std::uint64_t digest_of(const at::Tensor& tensor);

/// Another digest that also sees every changed bit, as an int64 on the tensor's device: computing it does not block the host.
LOCKSTEP_EXPORT at::Tensor digest_on_device(const at::Tensor& tensor);

namespace detail {

struct OptimizerCore;
struct OwnedSegment;
struct ReplicaPart;

using NamedTensor = std::pair<std::string, at::Tensor>;

/// What a replica holds that should be equal on all: its own copies of weights (replicas on one device share theirs, so
/// there is nothing to compare), the model's buffers if wanted, and the numbers that it and other owners of a
/// parameter's segments keep about it.
std::vector<TensorDigest> digests_of_replica(const OptimizerCore& core, std::size_t replica, bool buffers);
// The parts of that: weights and buffers, and the numbers, which are on the host.
std::vector<NamedTensor> compared_tensors(const OptimizerCore& core, std::size_t replica, bool buffers);
std::vector<TensorDigest> digests_of_state(const OptimizerCore& core, ReplicaPart& part);
std::string name_of_state(const OptimizerCore& core, const OwnedSegment& segment, const std::string& key);

/// Throws DataLoss where replicas held different things after `step`.
void require_no_difference(const std::vector<const std::vector<TensorDigest>*>& by_replica, std::int64_t step);

/// Of the weights by name, and of what the optimizer remembers about them as "name/exp_avg" (for classes whose
/// state is known).
std::vector<TensorDigest> digests_of_training(const OptimizerCore& core);
/// The same inside of run, by the replica that leads the others; with the buffers of replica 0 if wanted.
std::vector<TensorDigest> digests_while_replicas_wait(const OptimizerCore& core, bool buffers = false);

}  // namespace detail
}  // namespace lockstep
