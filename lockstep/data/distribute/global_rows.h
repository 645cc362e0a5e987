#pragma once

#include <cstdint>

#include "lockstep/base/export.h"
#include "lockstep/data/codec.h"
#include "lockstep/values/per_replica.h"

namespace lockstep {

namespace data {
/// Throws if other workers have rows too.
LOCKSTEP_EXPORT void require_all_rows_here();
}  // namespace data

/// The number of rows of all replicas of all workers: the size of a step's global batch, whatever the sizes of its
/// parts. `batch` comes from a distributed dataset or from `strategy.split`; within each part all tensors must have the
/// same first dimension. With several workers only batches of a distributed dataset know the other workers' rows; for
/// other tensors, count inside run with `global_rows(tensor)`.
/// run, with `global_rows(tensor)`.
///
///     const auto rows = ls::global_rows(batch);
///     strategy.run([&](const Digits& mine) { optimizer.minimize(ls::average_loss(losses_of(mine), rows)); }, batch);
template <class T>
std::int64_t global_rows(const PerReplica<T>& batch) {
  std::int64_t rows = 0;
  for (const T& part : batch) {
    data::Element leaves;
    data::encode<T>(part, leaves);
    rows += data::row_count(leaves, "global_rows", data::kHelpForBatches);
  }
  const BatchRows& known = batch.batch_rows();
  if (known.all >= 0 && known.here == rows) return known.all;
  data::require_all_rows_here();
  return rows;
}

}  // namespace lockstep
