#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/end_of_data.h"
#include "lockstep/data/distribute/split.h"

// What is known beforehand about the batches of one replica.
namespace lockstep::data {

/// The shapes of the elements that a replica gets from a distributed dataset. They do not depend on how the workers
/// share: with a known global batch size they are those of the balanced stream. `partial_steps` of several workers
/// leave the first dimension open, as any batch may be empty.
LOCKSTEP_EXPORT std::vector<StaticShape> distributed_shapes(const std::vector<StaticShape>& shapes,
                                                            std::int64_t global_batch_size, const ClusterShape& cluster,
                                                            bool partial_steps);

/// The same for a dataset made by a function: batches are those of one replica already.
LOCKSTEP_EXPORT std::vector<StaticShape> function_shapes(const std::vector<StaticShape>& shapes, int workers,
                                                         bool partial_steps);

/// The global batch size if the shapes alone tell it: a size, kUnknownBatchSize where components disagree, or
/// kAskStages where some first dimension is not known. Throws InvalidArgument for a scalar, which has no rows to share
/// out.
inline constexpr std::int64_t kAskStages = -2;
LOCKSTEP_EXPORT std::int64_t batch_size_by_shapes(const std::vector<StaticShape>& shapes);

/// Throws InvalidArgument if components are known to have different numbers of rows: rows that belong together would
/// go to different replicas.
LOCKSTEP_EXPORT void check_equal_rows(const std::vector<StaticShape>& shapes);

}  // namespace lockstep::data
