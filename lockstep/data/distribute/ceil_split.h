#pragma once

#include <atomic>
#include <memory>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Each batch by itself cut into `pieces` pieces of ceil(rows / pieces) rows, the last ones short or empty
/// ("legacy rebatch"). Components with different numbers of rows are cut each by itself; if there is a `warned`, with a
/// warning that sets it.
LOCKSTEP_EXPORT StagePtr make_ceil_split(StagePtr batches, int pieces,
                                         std::shared_ptr<std::atomic<bool>> warned = nullptr);

/// Piece k of `pieces` of a batch by the ceil split.
LOCKSTEP_EXPORT Element ceil_piece_of(const Element& batch, int pieces, int k);

/// Warns if the components of a batch have different numbers of rows, unless `warned`. TensorFlow cuts each component
/// by its own size without a warning.
void warn_of_unequal_rows(const Element& batch, std::atomic<bool>& warned);

}  // namespace lockstep::data
