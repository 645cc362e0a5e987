#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/data/distribute/split.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Warnings about cut batches, each given once over all passes.
struct CutWarnings {
  std::atomic<bool> of_unequal_rows = true;
  std::atomic<bool> of_single_rows = false;  ///< elements were never batched; seen at the first one
};

/// Cuts each batch into `pieces` pieces of ceil(rows / pieces) rows, the last ones short or empty ("legacy rebatch").
/// Components with different numbers of rows are cut separately.
LOCKSTEP_EXPORT StagePtr make_ceil_split(StagePtr batches, int pieces, std::shared_ptr<CutWarnings> warnings = nullptr);

/// Piece k of `pieces` of a batch that is cut on its own; see `cut`. Components with different numbers of rows are cut
/// separately.
LOCKSTEP_EXPORT Element piece_of(SplitRule rule, const Element& batch, int pieces, int k);

/// Logs warnings about a batch that is about to be cut. TensorFlow silently cuts components with different numbers of
/// rows separately.
void warn_before_cut(const Element& batch, CutWarnings& warnings);

/// The warning that elements like `element`, a description, are cut although they were never batched.
std::string single_rows_warning(const std::string& element);

}  // namespace lockstep::data
