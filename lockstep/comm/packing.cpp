#include "lockstep/comm/packing.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

void check_bytes_per_pack(std::int64_t bytes_per_pack) {
  if (bytes_per_pack < 0) {
    throw InvalidArgument(errors::kBadOption, {.what = str("bytes_per_pack must be >=0, not ", bytes_per_pack),
                                               .help = "0 packs everything into one message"});
  }
}

}  // namespace

Packs group_by_size(const std::vector<std::size_t>& bytes, std::int64_t bytes_per_pack) {
  check_bytes_per_pack(bytes_per_pack);
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

Packs plan_packs(const std::vector<PackLeaf>& leaves, std::int64_t bytes_per_pack) {
  check_bytes_per_pack(bytes_per_pack);
  struct Group {
    Dtype dtype;
    std::vector<std::size_t> leaves;
    std::vector<std::size_t> bytes;
  };
  std::vector<Group> groups;
  for (std::size_t i = leaves.size(); i-- > 0;) {
    auto group = std::ranges::find(groups, leaves[i].dtype, &Group::dtype);
    if (group == groups.end()) group = groups.insert(group, Group{.dtype = leaves[i].dtype});
    group->leaves.push_back(i);
    group->bytes.push_back(leaves[i].bytes);
  }
  Packs packs;
  for (const auto& group : groups) {
    for (auto& pack : group_by_size(group.bytes, bytes_per_pack)) {
      for (auto& index : pack) index = group.leaves[index];
      packs.push_back(std::move(pack));
    }
  }
  return packs;
}

std::vector<std::size_t> concat_and_split_sizes(const std::vector<std::size_t>& sizes, int num_packs) {
  if (num_packs <= 0) {
    throw InvalidArgument(errors::kBadOption, {.what = str("num_packs must be greater than zero, not ", num_packs)});
  }
  const auto count = static_cast<std::size_t>(num_packs);
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  std::vector<std::size_t> pieces(count, total / count);
  pieces.back() = total - total / count * (count - 1);
  return pieces;
}

}  // namespace lockstep
