#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/data/distribute/split.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// What to warn of when batches are cut: each once, over all passes.
struct CutWarnings {
  std::atomic<bool> of_unequal_rows = true;
  std::atomic<bool> of_single_rows = false;  ///< elements were never batched, and only the first one tells its shape
};

/// Each batch by itself cut into `pieces` pieces of ceil(rows / pieces) rows, the last ones short or empty
/// ("legacy rebatch"). Components with different numbers of rows are cut each by itself.
LOCKSTEP_EXPORT StagePtr make_ceil_split(StagePtr batches, int pieces, std::shared_ptr<CutWarnings> warnings = nullptr);

/// Piece k of `pieces` of a batch that is cut by itself; see `cut`. Components with different numbers of rows are cut each
/// by itself.
LOCKSTEP_EXPORT Element piece_of(SplitRule rule, const Element& batch, int pieces, int k);

/// Warns of what is seen in a batch that is about to be cut. TensorFlow cuts components with different numbers of rows
/// each by its own size without a warning.
void warn_before_cut(const Element& batch, CutWarnings& warnings);

/// That elements like `element`, a description, are cut though they were never batched.
std::string single_rows_warning(const std::string& element);

}  // namespace lockstep::data
