#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// The state of a balanced stream: how the next piece is cut. The stream ends with a short piece, or when a nonempty
/// piece is due and no row is left; empty pieces due before that are still dealt.
class LOCKSTEP_EXPORT BalancedCutter {
 public:
  BalancedCutter(std::vector<std::int64_t> sizes, bool drop_remainder = false);

  /// The number of rows the next piece should have.
  std::int64_t wanted() const { return sizes_[next_]; }
  /// Whether there is a piece if only `available` rows were left of those wanted.
  bool accepts(std::int64_t available) const;
  void advance() { next_ = (next_ + 1) % sizes_.size(); }

  std::int64_t cycle_length() const { return static_cast<std::int64_t>(sizes_.size()); }
  std::int64_t cycle_rows() const;  ///< rows of a full cycle

 private:
  std::vector<std::int64_t> sizes_;
  bool drop_remainder_;
  std::size_t next_ = 0;
};

/// The sizes of all pieces that a cutter makes of `rows` rows; for tables and plans.
LOCKSTEP_EXPORT std::vector<std::int64_t> pieces_of_stream(std::int64_t rows, const std::vector<std::int64_t>& sizes,
                                                           bool drop_remainder = false);

}  // namespace lockstep::data
