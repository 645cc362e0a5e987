#include "lockstep/comm/packing.h"

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

Packs group_by_size(const std::vector<std::size_t>& bytes, std::int64_t bytes_per_pack) {
  if (bytes_per_pack < 0) {
    throw InvalidArgument(errors::kBadOption, {.what = str("bytes_per_pack must be >= 0, got ", bytes_per_pack),
                                               .help = "use 0 to send everything in one pack"});
  }
  const auto limit = static_cast<std::size_t>(bytes_per_pack);
  if (limit == 0) {
    Packs one(1, std::vector<std::size_t>(bytes.size()));
    std::iota(one[0].begin(), one[0].end(), std::size_t{0});
    return one;
  }
  Packs packs;
  std::size_t filled = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (packs.empty() || filled > limit) {
      packs.emplace_back();
      filled = 0;
    }
    packs.back().push_back(i);
    filled += bytes[i];
  }
  return packs;
}

void check_num_packs(int num_packs) {
  if (num_packs >= 0) return;
  throw InvalidArgument(errors::kBadOption, {.what = str("num_packs must be >= 0, got ", num_packs),
                                             .help = "use 0 to reduce each tensor by itself"});
}

std::vector<std::size_t> concat_and_split_sizes(const std::vector<std::size_t>& sizes, int num_packs) {
  if (num_packs <= 0) {
    throw InvalidArgument(errors::kBadOption, {.what = str("num_packs must be >= 1, got ", num_packs),
                                               .help = "give the number of pieces to cut the batch into"});
  }
  const auto count = static_cast<std::size_t>(num_packs);
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  std::vector<std::size_t> pieces(count, total / count);
  pieces.back() = total - total / count * (count - 1);
  return pieces;
}

}  // namespace lockstep
