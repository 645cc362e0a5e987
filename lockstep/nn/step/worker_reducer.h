#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/nn/step/bucket_plan.h"
#include "lockstep/nn/step/gradient_reducer.h"
#include "lockstep/nn/step/outside_changes.h"
#include "lockstep/strategy/gpu.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep::detail {

/// Adds up the gradients of the replicas of all workers. They travel in buckets, in the order in which backward computed
/// them in the first step. Once all replicas of this worker have the gradients of a bucket, it goes out, while backward still
/// runs; what is left goes out when it has ended. The sums are the same on all workers, so each updates its own weights.
///
/// One exchange per step tells every worker what the others' gradients are (missing, dense, sparse), and checks that all make
/// the same call. Gradients that are sparse, or of a type that the engine does not add, travel after it, one by one.
///
/// Gradients on a GPU are copied to pinned memory as they are computed. Buckets then go out when the host has started all of
/// backward, each when its copies are done. Where the GPUs of the workers are connected, buckets stay on them, and go out when
/// the workers have agreed, each when its gradients are computed. Sums are on the first replica's device, from where owners on
/// others take theirs.
class WorkerReducer final : public GradientReducer {
 public:
  /// `name`: of the optimizer, the same on all workers.
  WorkerReducer(WorkerGroup& group, const ModuleCore& module, const std::vector<int>& group_of,
                const Replicas& replicas, const CommunicationOptions& options, std::string name);
  ~WorkerReducer() override;

  bool has_workers() const override { return true; }
  void start(ReplicaPart& mine, ReduceOp op) override;
  void bring_together(ReplicaPart& mine, ReduceOp op, const StepCall& call) override;
  void reduce(ReplicaPart& mine, ReduceOp op) override;
  void step_is_over() override { outside_changes_.remember(); }

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> node = {};  ///< of a leaf; LibTorch itself holds it weakly
    std::uintptr_t key = 0;
  };

  /// What one replica has put into a bucket.
  struct Part {
    std::size_t missing = 0;  ///< gradients
    at::Tensor flat = {};     ///< undefined until needed
    at::Tensor held = {};     ///< of a bucket of one gradient: that gradient, which travels from where it is
    std::shared_ptr<gpu::Arrival> copied = {};  ///< from a GPU
    bool is_stale = false;                      ///< went out before its last gradient was there
  };

  /// Of one replica. Touched by its own thread, and by the leader while it waits.
  struct Load {
    std::vector<Hook> hooks;  ///< per parameter; none before its first gradient may come
    ReduceOp op = ReduceOp::Sum;
    bool is_armed = false;          ///< between `start` and the end of the step: hooks put gradients into buckets
    std::vector<char> has_arrived;  ///< per parameter
    std::vector<Part> parts;        ///< per bucket
    std::vector<int> order;         ///< of arrivals, in the first step
  };

  /// A bucket on its way.
  struct Journey {
    Collective sum;               ///< of the replicas' parts
    at::Tensor result = {};       ///< on the first replica's device
    at::Tensor host_result = {};  ///< where it is staged
    std::atomic<int> loaded = 0;  ///< replicas that have loaded their parts
    WorkerGroup::Ticket ticket = 0;
  };

  void arrived(std::size_t k, std::size_t p);
  void put(std::size_t k, std::size_t p, const at::Tensor& gradient);
  void put_the_rest(std::size_t k);
  void bucket_is_loaded(std::size_t k, std::size_t b);
  void mark_copies(std::size_t k, std::size_t b);
  void submit(std::size_t b);

  // In the lead of all local replicas.
  void send_from_gpu();
  void await_copies(std::size_t b) const;
  void sum_between_gpus();
  void put_again(std::size_t b);
  void reset();
  // Likewise; worker_agreement.cpp
  void agree(ReduceOp op, const StepCall& call);
  void compare_marks(const OptimizerCore& core, const char* call);
  void make_plan();
  void gather_sparse(std::size_t p);
  void reduce_loose(std::size_t p);

  at::Tensor view_of(const at::Tensor& flat, std::size_t p) const;
  /// The same on all replicas, as `agree` makes sure before a sum is used.
  ReduceOp op() const { return loads_[0].op; }
  bool leave_to_update(ReplicaPart& mine, OwnedSegment& segment) const;

  WorkerGroup& group_;                                                ///< inside of run, when the strategy is there
  gpu::GpuWorkers* const gpus_ = group_.gpu_workers();                ///< likewise; null: all goes through host memory
  std::weak_ptr<WorkerGroup> alive_group_ = group_.weak_from_this();  ///< once it is gone, nothing is under way
  CommunicationOptions options_;
  std::string name_;
  bool on_gpu_;                                   ///< some replicas, or all
  bool is_staged_ = on_gpu_ && gpus_ == nullptr;  ///< what is on a GPU goes through host memory

  bool has_plan_ = false;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;          ///< per parameter; -1: in none
  std::vector<std::int64_t> begin_of_;  ///< in its bucket

  std::vector<Load> loads_ = std::vector<Load>(
      replicas_.size(),
      {.hooks = std::vector<Hook>(group_of_.size()), .has_arrived = std::vector<char>(group_of_.size(), false)});
  std::deque<Journey> journeys_;  ///< per bucket
  std::mutex mutex_;              ///< of what follows, while backward runs
  std::size_t next_ = 0;          ///< the bucket that goes out next
  std::size_t awaited_ = 0;       ///< those below it are back
  std::exception_ptr failure_;

  /// Per parameter: sums that are in no bucket.
  std::vector<at::Tensor> loose_ = std::vector<at::Tensor>(group_of_.size());
  std::vector<GradientKind> kinds_ = std::vector<GradientKind>(group_of_.size(), GradientKind::None);
  OutsideChanges outside_changes_{module_, group_of_};
};

}  // namespace lockstep::detail
