#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/contrib/client_call.h"
#include "lockstep/contrib/tower_values.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::contrib {

class DistributionStrategy;

/// A tower's identity inside a function given to `call_for_each_tower`, and its way to meet the others.
///
///     strategy.call_for_each_tower([] {
///       auto tower = contrib::get_tower_context();
///       auto merge = [](contrib::DistributionStrategy& s, const contrib::PerDevice<int>& v) { return s.unwrap(v); };
///       std::vector<int> of_all = tower.merge_call(merge, 3 + tower.tower_id());
///     });
class LOCKSTEP_EXPORT TowerContext {
 public:
  explicit TowerContext(ReplicaContext& replica) : replica_(&replica) {}

  /// This tower's number, how many there are over all workers, and this tower's device.
  int tower_id() const { return replica_->replica_id_in_sync_group(); }
  int num_towers() const { return replica_->num_replicas_in_sync(); }
  bool is_single_tower() const { return num_towers() == 1; }
  const std::string& device() const { return replica_->device_name(); }
  /// FailedPrecondition if no strategy of contrib is current.
  DistributionStrategy& distribution_strategy() const;

  /// Calls `f(strategy, per_device_args...)` once for all towers of this process (so once per worker of a cluster), in
  /// cross-tower context. Each tower gets its own component of distributed results, and everything else unchanged.
  template <class F, class... Args>
  auto merge_call(F&& f, Args&&... args) const {
    if constexpr (!std::is_invocable_v<F&, DistributionStrategy&, const PerReplica<std::decay_t<Args>>&...>) {
      static_assert(lockstep::detail::never<F>,
                    "merge_call(f, args...) calls f(contrib::DistributionStrategy&, contrib::PerDevice<T>...), with a "
                    "PerDevice for each argument");
      return lockstep::detail::AfterCompileError();
    } else {
      DistributionStrategy& strategy = distribution_strategy();
      return replica_->merge_call(
          [&](Strategy& core, const PerReplica<std::decay_t<Args>>&... all) {
            // Negative: the numbers of merges must not collide with the calls of map and update.
            const detail::ClientRandom random(core, -detail::count_merge(core, typeid(F)), 0);
            return f(strategy, detail::of_towers(core, all)...);
          },
          std::forward<Args>(args)...);
    }
  }

 private:
  ReplicaContext* replica_;
};

/// The calling tower; FailedPrecondition in cross-tower context, where TensorFlow returns None.
LOCKSTEP_EXPORT TowerContext get_tower_context();
LOCKSTEP_EXPORT bool in_cross_tower_context();

/// The strategy of the current context; FailedPrecondition if there is none.
LOCKSTEP_EXPORT DistributionStrategy& get_distribution_strategy();

}  // namespace lockstep::contrib
