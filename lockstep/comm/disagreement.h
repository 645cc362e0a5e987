#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/export.h"

// Reports about workers whose descriptions should be equal and are not.
namespace lockstep {

/// "a, b and c"; "a and 3 more" if there are more than `most`.
LOCKSTEP_EXPORT std::string list_of(const std::vector<std::string>& names, std::size_t most = 8);

/// "worker 2", "workers 0, 1 and 3".
LOCKSTEP_EXPORT std::string workers_text(const std::vector<int>& workers);

/// One party's description, line by line.
struct Statement {
  std::string name;
  std::vector<std::string> lines;
};

/// Where two differ, a few lines at most; empty if they do not.
LOCKSTEP_EXPORT std::string difference(const Statement& a, const Statement& b);

/// Workers with the same description.
template <class T>
struct AgreeingWorkers {
  T statement;
  std::vector<int> workers;
};

/// The largest group, which is probably right, comes first; among equal sizes, the one with the lowest worker.
template <class T>
std::vector<AgreeingWorkers<T>> group_by_statement(const std::vector<T>& of_workers) {
  using Group = AgreeingWorkers<T>;
  std::vector<Group> groups;
  for (int worker = 0; worker < std::ssize(of_workers); ++worker) {
    const T& statement = of_workers[static_cast<std::size_t>(worker)];
    auto same = std::ranges::find(groups, statement, &Group::statement);
    if (same == groups.end()) same = groups.insert(same, {statement, {}});
    same->workers.push_back(worker);
  }
  std::ranges::sort(groups, {},
                    [](const Group& group) { return std::pair(-std::ssize(group.workers), group.workers[0]); });
  return groups;
}

/// Compares each worker's description of something that all must describe alike: "model of worker 1 differs from
/// workers 0 and 2". Nothing if they agree; `names` names the workers.
LOCKSTEP_EXPORT std::optional<ErrorText> disagreement(
    const std::string& what, const std::vector<std::vector<std::string>>& of_workers,
    const std::function<std::string(const std::vector<int>& workers)>& names,
    const std::string& help = "run the same program with the same arguments on all workers");

}  // namespace lockstep
