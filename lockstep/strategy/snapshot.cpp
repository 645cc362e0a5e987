#include "lockstep/strategy/snapshot.h"

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/random_state.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/values_of_all.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep {
namespace {

constexpr const char* kRandom = "random";

void require_names(const std::vector<NamedState>& parts, const char* operation) {
  std::set<std::string> names{kRandom};
  for (const NamedState& part : parts) {
    const bool is_name = !part.name.empty() && part.name.find('/') == std::string::npos;
    if (is_name && names.insert(part.name).second) continue;
    throw InvalidArgument(
        errors::kBadOption,
        {.what = is_name ? str("two parts of a training have the name '", part.name, "'")
                         : str("a part's name must not be empty or contain '/', got '", part.name, "'"),
         .where = operation,
         .help = "give each part a name of its own, such as \"model\"; \"random\" is for the random numbers"});
  }
}

void require_known_version(const Snapshot& snapshot) {
  if (snapshot.version == Snapshot::kVersion) return;
  throw InvalidArgument(errors::kSavedState,
                        {.what = str("a snapshot's version must be ", Snapshot::kVersion, ", got ", snapshot.version),
                         .where = "restore",
                         .help = "restore it with the version of Lockstep that captured it"});
}

/// The names under which a snapshot has entries by replica: all workers must have the same.
workers::Texts names_by_replica(const Strategy& strategy, const Snapshot& snapshot) {
  workers::Texts names;
  for (const auto& [name, values] : snapshot.by_replica) {
    names.push_back(str("entry by replica: ", name));
    const int first = strategy.worker_id() * strategy.num_local_replicas();
    bool are_mine = std::ssize(values) == strategy.num_local_replicas();
    for (const auto& each : values)
      are_mine = are_mine && each.first >= first && each.first < first + strategy.num_local_replicas();
    if (are_mine) continue;
    throw InvalidArgument(
        errors::kSavedState,
        {.what = str("'", name, "' must have a value for each replica of worker ", strategy.worker_id()),
         .where = "gather",
         .seen = counted(std::ssize(values), "value"),
         .help = "give what capture returned on this worker, once"});
  }
  return names;
}

}  // namespace

Snapshot capture(Strategy& strategy, const std::vector<NamedState>& parts) {
  detail::require_between_runs(strategy, "capture");
  require_names(parts, "capture");
  Snapshot snapshot;
  for (const NamedState& part : parts) part.state->capture(snapshot, part.name);
  detail::RandomState(strategy).capture(snapshot, kRandom);
  return snapshot;
}

void restore(Strategy& strategy, const Snapshot& snapshot, const std::vector<NamedState>& parts) {
  detail::RandomState random(strategy);
  detail::or_fail_together(strategy, "restore", [&] {
    detail::require_between_runs(strategy, "restore");
    require_names(parts, "restore");
    require_known_version(snapshot);
    for (const NamedState& part : parts) part.state->check(snapshot, part.name);
    random.check(snapshot, kRandom);
  });
  if (WorkerGroup* const workers = detail::StrategyAccess::workers(strategy)) {
    workers::Texts lines;
    for (const NamedState& part : parts) lines.push_back(str("part: ", part.name));
    for (const auto& entry : snapshot.shared) lines.push_back(str("entry: ", entry.first));
    workers::require_same(
        *workers, {.what = "snapshot", .lines = std::move(lines), .help = "restore one snapshot on all workers"},
        "restore", deadline_of(strategy.communication()));
  }
  for (const NamedState& part : parts) part.state->restore(snapshot, part.name);
  random.restore(snapshot, kRandom);  // last: making the parts' states may draw numbers
  detail::StrategyAccess::runs(strategy).last_failure.reset();
}

Snapshot gather(Strategy& strategy, Snapshot snapshot) {
  WorkerGroup* const workers = detail::StrategyAccess::workers(strategy);
  if (workers == nullptr) return snapshot;
  workers::Texts names = detail::or_fail_together(strategy, "gather", [&] {
    detail::require_between_runs(strategy, "gather");
    return names_by_replica(strategy, snapshot);
  });
  workers::require_same(*workers, {.what = "snapshot", .lines = std::move(names)}, "gather",
                        deadline_of(strategy.communication()));
  for (auto& [name, values] : snapshot.by_replica) {
    std::vector<at::Tensor> mine;
    for (const auto& each : values) mine.push_back(each.second);
    int replica = 0;
    for (at::Tensor& value : detail::of_all_replicas(strategy, mine)) values[replica++] = std::move(value);
  }
  return snapshot;
}

}  // namespace lockstep
