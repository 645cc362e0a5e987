#include "lockstep/train/chiefs_snapshot.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::train::detail {
namespace {

using Json = nlohmann::json;

/// All of a snapshot but its tensors, whose names are in the order in which they are sent.
std::string outline_of(const std::optional<Snapshot>& snapshot) {
  if (!snapshot) return "null";
  Json shared = Json::array(), by_replica = Json::array(), texts = Json::array();
  for (const auto& [name, tensor] : snapshot->shared) shared.push_back(name);
  for (const auto& [name, tensors] : snapshot->by_replica) {
    for (const auto& [replica, tensor] : tensors) by_replica.push_back({name, replica});
  }
  for (const auto& [name, text] : snapshot->texts) texts.push_back({name, text});
  return Json{{"version", snapshot->version}, {"shared", shared}, {"by_replica", by_replica}, {"texts", texts}}.dump();
}

}  // namespace

std::optional<Snapshot> chiefs_snapshot(const Strategy& strategy, std::optional<Snapshot> mine) {
  WorkerGroup* const workers = lockstep::detail::StrategyAccess::workers(strategy);
  if (workers == nullptr || workers->workers() == 1) return mine;
  if (workers->rank() != 0) mine.reset();
  const Deadline deadline = deadline_of(strategy.communication());
  const Json outline =
      Json::parse(workers::broadcast_texts(*workers, {outline_of(mine)}, "outline of a snapshot", deadline).at(0));
  if (outline.is_null()) return std::nullopt;
  Snapshot all;
  all.version = outline.at("version");
  for (const std::string name : outline.at("shared"))
    all.shared[name] = workers::broadcast(*workers, mine ? mine->shared.at(name) : at::Tensor(), name, deadline);
  for (const Json& entry : outline.at("by_replica")) {
    const std::string name = entry.at(0);
    const int replica = entry.at(1);
    const at::Tensor value = mine ? mine->by_replica.at(name).at(replica) : at::Tensor();
    all.by_replica[name][replica] = workers::broadcast(*workers, value, name, deadline);
  }
  for (const Json& entry : outline.at("texts")) all.texts[entry.at(0)] = entry.at(1);
  return all;
}

}  // namespace lockstep::train::detail
