#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {

class ModuleCore;

/// Weights changed by the program between two steps: by model.update, model.apply, or in place. Replicas of one worker
/// share them; workers compare their values. Covers the weights that the optimizer trains, or that none does: another
/// optimizer's are its own concern. Changes through `data()` go unnoticed. Within one worker: nn/module_watch.h.
class OutsideChanges {
 public:
  /// `group_of`: per parameter, >= 0 if the optimizer trains it.
  OutsideChanges(const ModuleCore& module, const std::vector<int>& group_of)
      : module_(module), group_of_(group_of), versions_(group_of.size(), kNever) {}

  /// After a step: changes up to now were made by Lockstep.
  void remember();
  /// 0: nothing has changed since. Otherwise the number differs if the weights do: always at first, later only
  /// occasionally, because some programs clip their weights in every step. While replicas wait.
  std::uint64_t mark();
  /// A line with the digest of each relevant weight.
  workers::Texts lines() const;

 private:
  static constexpr std::int64_t kNever = -1;

  bool counts(std::size_t p) const;
  std::int64_t version(std::size_t p) const;

  const ModuleCore& module_;
  const std::vector<int>& group_of_;
  std::vector<std::int64_t> versions_;  ///< versions of replica 0's leaves
  std::uint64_t changes_ = 0;           ///< steps preceded by a change
};

}  // namespace lockstep::detail
