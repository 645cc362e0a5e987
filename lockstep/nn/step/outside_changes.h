#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {

class ModuleCore;

/// Weights that the program has changed itself between two steps: by model.update, model.apply, or in place. Replicas of one
/// worker share them; workers compare what they are now. Those count that the optimizer trains, or none does: what another
/// optimizer trains is that one's business. Changes through `data()` go unnoticed. In one worker: nn/module_watch.h.
class OutsideChanges {
 public:
  /// `group_of` says of each parameter whether the optimizer trains it: >= 0.
  OutsideChanges(const ModuleCore& module, const std::vector<int>& group_of)
      : module_(module), group_of_(group_of), versions_(group_of.size(), kNever) {}

  /// After a step: what has changed by now was changed by Lockstep.
  void remember();
  /// 0: nothing has changed since. Otherwise the number differs where the weights do: the first times always, later now
  /// and then, because some programs clip their weights in every step. While replicas wait.
  std::uint64_t mark();
  /// A line with the digest of each weight that counts.
  workers::Texts lines() const;

 private:
  static constexpr std::int64_t kNever = -1;

  bool counts(std::size_t p) const;
  std::int64_t version(std::size_t p) const;

  const ModuleCore& module_;
  const std::vector<int>& group_of_;
  std::vector<std::int64_t> versions_;  ///< of replica 0's leaves
  std::uint64_t changes_ = 0;           ///< steps before which there was a change
};

}  // namespace lockstep::detail
