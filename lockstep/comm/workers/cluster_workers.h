#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"
#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/worker_group.h"

namespace lockstep {

/// A process's place in a job. Strategies that live at the same time share one: a cluster's entry has one port.
struct Membership {
  explicit Membership(const WorkerGroupOptions& options);

  std::unique_ptr<coordination::Coordinator> coordinator;
  std::atomic<int> strategies{0};  ///< made so far; all workers make them in the same order

  /// Of the strategies that are alive the one that was made first; null if there is none.
  WorkerGroup* first_alive();
  void begins(WorkerGroup* strategy);
  void ends(WorkerGroup* strategy);

 private:
  std::mutex mutex_;
  std::vector<WorkerGroup*> alive_;
};

/// The workers of a cluster: coordination over gRPC, data through the engine. Whatever ends first, an engine's connection or
/// a peer's heartbeats, all workers throw the same error: the coordinator's.
class ClusterWorkers final : public WorkerGroup {
 public:
  ClusterWorkers(const WorkerGroupOptions& options, std::shared_ptr<Membership> membership);
  ~ClusterWorkers() override;

  Ticket submit(Channel channel, const Collective& collective, Deadline limit) override;
  void wait(Ticket ticket) override;
  void barrier(std::string_view name, Deadline deadline) override;
  void check() override;
  void set_place(std::int64_t step, std::string_view place) override;
  void report(const Error& error) override;
  void report(const std::string& what) override;

 private:
  coordination::Coordinator& coordinator() const { return *membership_->coordinator; }
  Deadline limit() const;
  /// Makes `error`, seen by this worker, the job's failure, unless there is one already; throws the job's.
  [[noreturn]] void fail_with(const Error& error);
  /// What one worker sees of another's death is seldom the cause. The coordinator knows more, a moment later.
  void await_root_cause();
  std::string places_of_others();
  void warn_of(const LateCollective& late);
  std::vector<coordination::MemberState> states();
  void write_log();

  WorkerGroupOptions options_;
  std::shared_ptr<Membership> membership_;
  std::string prefix_;  ///< of names that belong to this strategy
  std::shared_ptr<Engine> engine_;
  std::atomic<bool> has_written_log_{false};
};

/// Joins the cluster, or finds the membership that another strategy of this process holds.
std::unique_ptr<WorkerGroup> make_cluster_workers(const WorkerGroupOptions& options);

}  // namespace lockstep
