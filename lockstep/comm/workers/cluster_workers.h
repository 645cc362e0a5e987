#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"
#include "lockstep/comm/worker_group.h"

namespace lockstep {

/// A process's place in a job. Strategies that exist at the same time share one: a cluster's entry has one port.
class Membership : public std::enable_shared_from_this<Membership> {
 public:
  explicit Membership(const WorkerGroupOptions& options);

  /// A strategy's view of the workers. All workers make their strategies in the same order, one at a time.
  std::shared_ptr<WorkerGroup> add_strategy(const WorkerGroupOptions& options);

  const std::unique_ptr<coordination::Coordinator> coordinator;

 private:
  std::vector<std::weak_ptr<WorkerGroup>> strategies_;  // all that were made
};

}  // namespace lockstep
