#pragma once

#include <cstdint>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/split.h"
#include "lockstep/data/element_spec.h"

// What is known beforehand about the batches of one replica.
namespace lockstep::data {

/// Of the elements that a replica gets from a distributed dataset. It does not depend on how the workers share: with a
/// known global batch size it is that of the balanced stream. `partial_steps` of several workers leave the first
/// dimension open, as any batch may be empty.
LOCKSTEP_EXPORT ElementSpec distributed_spec(const ElementSpec& dataset, std::int64_t global_batch_size,
                                             const ClusterShape& cluster, bool partial_steps);

/// Whether a step in which only some replicas have data is completed with empty batches ("partial batch handling").
/// It is unless the dataset never ends, or all shapes are known in full and there is only one worker.
LOCKSTEP_EXPORT bool handles_partial_steps(const ElementSpec& dataset, bool is_infinite, int workers);

/// The global batch size if the spec alone tells it: a size, kUnknownBatchSize where components disagree, or
/// kAskStages where some first dimension is not known. Throws InvalidArgument for a scalar, which has no rows to share
/// out.
inline constexpr std::int64_t kAskStages = -2;
LOCKSTEP_EXPORT std::int64_t batch_size_by_spec(const ElementSpec& dataset);

/// For errors about datasets that cannot be cut into batches of replicas.
inline constexpr RowsHelp kHelpForDistribute{
    .no_rows = "call batch() before distribute(), or make per-replica batches in distribute_from_function",
    .unequal = "give all components the same first dimension, or make per-replica batches in distribute_from_function"};

}  // namespace lockstep::data
