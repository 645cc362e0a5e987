#include "lockstep/nn/owner_plan.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

OwnerPlan plan_owners(const std::vector<OwnedParameter>& parameters, int replicas, std::int64_t block) {
  if (replicas < 1 || block < 1) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("replicas and block must be >= 1, got ", replicas, " and ", block),
                           .where = "plan_owners",
                           .help = "leave block at its default"});
  }
  const auto blocks_of = [&](const OwnedParameter& parameter) { return (parameter.elements + block - 1) / block; };
  std::int64_t all_blocks = 0;
  for (const auto& parameter : parameters) all_blocks += parameter.whole ? 0 : blocks_of(parameter);

  OwnerPlan plan(static_cast<std::size_t>(replicas));
  std::int64_t first_block = 0;
  int next_owner = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const int index = static_cast<int>(i);
    if (parameter.whole) {
      plan[static_cast<std::size_t>(next_owner)].push_back({index, 0, parameter.elements});
      next_owner = (next_owner + 1) % replicas;
      continue;
    }
    const std::int64_t blocks = blocks_of(parameter);
    for (int r = 0; r < replicas; ++r) {
      const std::int64_t from = std::clamp(all_blocks * r / replicas, first_block, first_block + blocks) - first_block;
      const std::int64_t to =
          std::clamp(all_blocks * (r + 1) / replicas, first_block, first_block + blocks) - first_block;
      if (from < to)
        plan[static_cast<std::size_t>(r)].push_back({index, from * block, std::min(to * block, parameter.elements)});
    }
    first_block += blocks;
  }
  return plan;
}

std::string to_string(const OwnerPlan& plan, const std::vector<OwnedParameter>& parameters) {
  std::string text;
  for (std::size_t r = 0; r < plan.size(); ++r) {
    text += str("replica ", r, ":");
    for (const auto& segment : plan[r]) {
      const bool all =
          segment.begin == 0 && segment.end == parameters[static_cast<std::size_t>(segment.parameter)].elements;
      text +=
          all ? str(" #", segment.parameter) : str(" #", segment.parameter, "[", segment.begin, "..", segment.end, ")");
    }
    text += "\n";
  }
  return text;
}

void add_blocks(const Segment& segment, std::size_t first_block, std::vector<BlockRange>& ranges) {
  const std::size_t begin = first_block + static_cast<std::size_t>(segment.begin / kShardBlock);
  const std::int64_t blocks = std::max<std::int64_t>(1, (segment.end - segment.begin + kShardBlock - 1) / kShardBlock);
  const std::size_t end = begin + static_cast<std::size_t>(blocks);
  if (!ranges.empty() && ranges.back().end == begin)
    ranges.back().end = end;
  else
    ranges.push_back({begin, end});
}

}  // namespace lockstep
