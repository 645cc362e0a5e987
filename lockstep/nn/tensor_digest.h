#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/digest.h"

namespace lockstep {

/// Digest of the elements, in the order of their indices, whatever the memory format. On any device.
LOCKSTEP_EXPORT std::uint64_t digest_of(const at::Tensor& tensor);

/// A different digest that also detects every changed bit, as an int64 on the tensor's device: computing it does not
/// block the host.
LOCKSTEP_EXPORT at::Tensor digest_on_device(const at::Tensor& tensor);

namespace detail {

struct OptimizerCore;
struct OwnedSegment;
struct ReplicaPart;

using NamedTensor = std::pair<std::string, at::Tensor>;

/// Digests of a replica's state that should be equal on all: its own copies of weights (replicas on one device share
/// theirs, so there is nothing to compare), the model's buffers if requested, and the numbers that owners of a
/// parameter's segments each keep.
std::vector<TensorDigest> digests_of_replica(const OptimizerCore& core, std::size_t replica, bool buffers);
// Its parts: weights and buffers, and the numbers, which are on the host.
std::vector<NamedTensor> compared_tensors(const OptimizerCore& core, std::size_t replica, bool buffers);
std::vector<TensorDigest> digests_of_state(const OptimizerCore& core, ReplicaPart& part);
std::string name_of_state(const OptimizerCore& core, const OwnedSegment& segment, const std::string& key);

/// Throws DataLoss if the replicas' digests differed after `step`.
void require_no_difference(const std::vector<const std::vector<TensorDigest>*>& by_replica, std::int64_t step);

/// Digests of the weights by name, and of the optimizer's state as "name/exp_avg" (for classes with known state).
std::vector<TensorDigest> digests_of_training(const OptimizerCore& core);
/// The same inside of run, by the replica that leads the others; with the buffers of replica 0 if requested.
std::vector<TensorDigest> digests_while_replicas_wait(const OptimizerCore& core, bool buffers = false);

}  // namespace detail
}  // namespace lockstep
