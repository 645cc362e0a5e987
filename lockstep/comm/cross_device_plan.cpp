#include "lockstep/comm/cross_device_plan.h"

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep {
namespace {

using Action = ReductionStep::Action;

std::vector<int> range(int lo, int hi) {
  std::vector<int> result(static_cast<std::size_t>(hi - lo));
  std::iota(result.begin(), result.end(), lo);
  return result;
}

std::vector<int> range_without(int lo, int hi, int left_out) {
  auto result = range(lo, hi);
  std::erase(result, left_out);
  return result;
}

ReductionStep sum(int device, std::vector<int> of) {
  return {.action = Action::Sum, .device = device, .others = std::move(of)};
}

ReductionStep send(int device, std::vector<int> to) {
  return {.action = Action::Send, .device = device, .others = std::move(to)};
}

std::vector<ReductionStep> ordered(int devices) {
  std::vector<ReductionStep> steps;
  steps.reserve(2 * static_cast<std::size_t>(devices));
  for (int k = 0; k < devices; ++k) steps.push_back(sum(k, range(0, devices)));
  for (int k = 0; k < devices; ++k) steps.push_back(send(k, range_without(0, devices, k)));
  for (auto& step : steps) step.shard = step.device;
  return steps;
}

std::vector<ReductionStep> on_one_device(int devices) {
  return {sum(0, range(0, devices)), send(0, range_without(0, devices, 0))};
}

// The groups are the two subtrees of the summation tree: equal halves for 2, 4 or 8 devices, and for any other count
// every device has a part and the sums still are those of the tree.
std::vector<ReductionStep> hierarchical_copy(int devices, int pack) {
  if (devices == 1) return on_one_device(devices);
  const int cut = tree_middle(0, devices);
  const int main = pack % devices;
  const int left = main < cut ? main : main - cut;
  const int right = main < cut ? cut + main % (devices - cut) : main;
  const int other = main == left ? right : left;
  return {sum(left, range(0, cut)),
          sum(right, range(cut, devices)),
          sum(main, {left, right}),
          send(main, {other}),
          send(left, range_without(0, cut, left)),
          send(right, range_without(cut, devices, right))};
}

std::string listed(const std::vector<int>& devices) {
  std::string result;
  for (const int device : devices) result += str(result.empty() ? "" : ", ", device);
  return result;
}

std::string described(const ReductionStep& step) {
  const auto shard = step.shard ? str(" (shard ", *step.shard, ")") : "";
  switch (step.action) {
    case Action::Sum: return str(step.device, ": sum of ", listed(step.others), shard);
    case Action::Send: return str(step.device, " -> ", listed(step.others), shard);
    case Action::AllReduce: return str("all-reduce among ", listed(step.others), shard);
  }
  return "";
}

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Ordered: return "ordered";
    case Algorithm::OneDevice: return "one device";
    case Algorithm::HierarchicalCopy: return "hierarchical copy";
    case Algorithm::Nccl: return "NCCL";
  }
  return "unknown";
}

void check_num_packs(Algorithm algorithm, int num_packs) {
  if (num_packs < 0) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str(to_string(algorithm), " all-reduce requires num_packs >= 0, not ", num_packs),
                           .help = "0 means no packing"});
  }
}

ReductionPlan plan_reduction(Algorithm algorithm, int devices, int pack) {
  if (devices < 1 || pack < 0) {
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("A reduction needs at least one device and a pack number >= 0, not ", devices, " and ", pack)});
  }
  ReductionPlan plan{.algorithm = algorithm, .devices = devices, .pack = pack};
  switch (algorithm) {
    case Algorithm::Ordered: plan.steps = ordered(devices); break;
    case Algorithm::OneDevice: plan.steps = on_one_device(devices); break;
    case Algorithm::HierarchicalCopy: plan.steps = hierarchical_copy(devices, pack); break;
    case Algorithm::Nccl: plan.steps = {{.action = Action::AllReduce, .others = range(0, devices)}}; break;
  }
  std::erase_if(plan.steps, [](const ReductionStep& step) { return step.others.empty(); });
  return plan;
}

std::string to_string(const ReductionPlan& plan) {
  auto result = str(to_string(plan.algorithm), " over ", counted(plan.devices, "device"), ", pack ", plan.pack);
  for (const auto& step : plan.steps) result += "\n  " + described(step);
  return result;
}

}  // namespace lockstep
