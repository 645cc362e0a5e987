#pragma once

#include <cstdint>

#include "lockstep/data/codec.h"
#include "lockstep/values/per_replica.h"

namespace lockstep {

/// The rows of all replicas together: the size of a step's global batch, whatever sizes its parts have. `batch` comes
/// from a distributed dataset or from `strategy.split`; within each part all tensors must have the same first dimension.
///
///     const auto rows = ls::global_rows(batch);
///     strategy.run([&](const Digits& mine) { optimizer.minimize(ls::average_loss(losses_of(mine), rows)); }, batch);
template <class T>
std::int64_t global_rows(const PerReplica<T>& batch) {
  std::int64_t rows = 0;
  for (const T& part : batch) {
    data::Element leaves;
    data::encode<T>(part, leaves);
    rows += data::row_count(leaves, "global_rows");
  }
  return rows;
}

}  // namespace lockstep
