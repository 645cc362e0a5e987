#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// Where a balanced stream stands: how the next piece is cut. It ends with a short piece, or when a piece that is not
/// empty is due and no row is left; empty pieces due before that are still dealt.
class LOCKSTEP_EXPORT BalancedCutter {
 public:
  BalancedCutter(std::vector<std::int64_t> sizes, bool drop_remainder = false);

  /// The rows that the next piece should have.
  std::int64_t wanted() const { return sizes_[next_]; }
  /// Given that only `available` rows could be had of those wanted: whether there is a piece.
  bool accepts(std::int64_t available) const;
  void advance() { next_ = (next_ + 1) % sizes_.size(); }

  std::int64_t cycle_length() const { return static_cast<std::int64_t>(sizes_.size()); }
  std::int64_t cycle_rows() const;  ///< rows of a whole cycle

 private:
  std::vector<std::int64_t> sizes_;
  bool drop_remainder_;
  std::size_t next_ = 0;
};

/// The sizes of all pieces that a cutter makes of `rows` rows; for tables and plans.
LOCKSTEP_EXPORT std::vector<std::int64_t> pieces_of_stream(std::int64_t rows, const std::vector<std::int64_t>& sizes,
                                                           bool drop_remainder = false);

}  // namespace lockstep::data
