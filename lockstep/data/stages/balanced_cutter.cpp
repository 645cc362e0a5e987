#include "lockstep/data/stages/balanced_cutter.h"

#include <algorithm>
#include <numeric>

#include "lockstep/data/errors.h"

namespace lockstep::data {

BalancedCutter::BalancedCutter(std::vector<std::int64_t> sizes, bool drop_remainder)
    : sizes_(std::move(sizes)), drop_remainder_(drop_remainder) {
  if (sizes_.empty() || std::ranges::any_of(sizes_, [](std::int64_t size) { return size < 0; })) {
    refuse_option("rebatch", "rebatch needs at least one size, and none below 0",
                  "give the numbers of rows of the batches, such as {3, 3, 2}");
  }
  if (std::ranges::all_of(sizes_, [](std::int64_t size) { return size == 0; })) {
    throw InvalidArgument(errors::kBadOption, {.what = "rebatch needs a size above 0, or it would never end",
                                               .where = "rebatch",
                                               .seen = counted(static_cast<long long>(sizes_.size()), "size") + " of 0",
                                               .help = "give the numbers of rows of the batches, such as {3, 3, 2}"});
  }
}

bool BalancedCutter::accepts(std::int64_t available) const {
  if (wanted() == 0) return true;
  return drop_remainder_ ? available == wanted() : available > 0;
}

std::int64_t BalancedCutter::cycle_rows() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
}

std::vector<std::int64_t> pieces_of_stream(std::int64_t rows, const std::vector<std::int64_t>& sizes,
                                           bool drop_remainder) {
  BalancedCutter cutter(sizes, drop_remainder);
  std::vector<std::int64_t> pieces;
  while (true) {
    const std::int64_t available = std::min(rows, cutter.wanted());
    if (!cutter.accepts(available)) return pieces;
    pieces.push_back(available);
    if (available < cutter.wanted()) return pieces;
    rows -= available;
    cutter.advance();
  }
}

}  // namespace lockstep::data
