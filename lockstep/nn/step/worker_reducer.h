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

/// Sums the gradients of the replicas of all workers. They are sent in buckets, in the order in which backward computed
/// them in the first step. Once all replicas of this worker have the gradients of a bucket, it is sent while backward
/// still runs; the rest is sent afterwards. The sums are the same on all workers, so each updates its own weights.
///
/// One exchange per step shares the kinds of all gradients (missing, dense, sparse) and checks that all workers make
/// the same call. Gradients that are sparse, or of a type that the engine cannot sum, follow one by one.
///
/// Gradients on a GPU are copied to pinned memory as they are computed. Buckets are sent once the host has started all
/// of backward, each when its copies are done. If the GPUs of the workers are connected, buckets stay on them, and are
/// sent when the workers have agreed, each when its gradients are computed. Sums are on the first replica's device;
/// owners on other devices read them from there.
class WorkerReducer final : public GradientReducer {
 public:
  /// `name`: the optimizer's, the same on all workers.
  WorkerReducer(WorkerGroup& group, const ModuleCore& module, const std::vector<int>& group_of,
                const Replicas& replicas, const CommunicationOptions& options, std::string name);
  ~WorkerReducer() override;

  bool has_workers() const override { return true; }
  void start(ReplicaPart& mine, ReduceOp op) override;
  void exchange(ReplicaPart& mine, ReduceOp op, const StepCall& call) override;
  void reduce(ReplicaPart& mine, ReduceOp op) override;
  void end_step() override { outside_changes_.remember(); }

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> node = {};  ///< a leaf's node; LibTorch itself holds it weakly
    std::uintptr_t key = 0;
  };

  /// One replica's contribution to a bucket.
  struct Part {
    std::size_t missing = 0;                    ///< gradients
    at::Tensor flat = {};                       ///< undefined until needed
    at::Tensor held = {};                       ///< the gradient of a bucket with only one, sent from its place
    std::shared_ptr<gpu::Arrival> copied = {};  ///< from a GPU
    bool is_stale = false;                      ///< sent before its last gradient was there
  };

  /// State of one replica. Accessed by its own thread, and by the leader while it waits.
  struct Load {
    std::vector<Hook> hooks;  ///< per parameter; none before its first gradient may come
    ReduceOp op = ReduceOp::Sum;
    bool is_armed = false;          ///< between `start` and the end of the step: hooks put gradients into buckets
    std::vector<char> has_arrived;  ///< per parameter
    std::vector<Part> parts;        ///< per bucket
    std::vector<int> order;         ///< order of arrivals in the first step
  };

  /// A bucket on its way.
  struct BucketInFlight {
    Collective sum;               ///< over the replicas' parts
    at::Tensor result = {};       ///< on the first replica's device
    at::Tensor host_result = {};  ///< staging memory
    std::atomic<int> loaded = 0;  ///< replicas that have loaded their parts
    WorkerGroup::Ticket ticket = 0;
  };

  void arrived(std::size_t k, std::size_t p);
  void put(std::size_t k, std::size_t p, const at::Tensor& gradient);
  void put_missing(std::size_t k);
  void bucket_is_loaded(std::size_t k, std::size_t b);
  void mark_copies(std::size_t k, std::size_t b);
  void submit(std::size_t b);

  // Called by the leader of all local replicas.
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
  /// The same on all replicas, which `agree` ensures before a sum is used.
  ReduceOp op() const { return loads_[0].op; }
  bool leave_to_update(ReplicaPart& mine, OwnedSegment& segment) const;

  WorkerGroup& group_;                                                ///< for use inside run, while the strategy exists
  gpu::GpuWorkers* const gpus_ = group_.gpu_workers();                ///< likewise; null: everything goes through host
                                                                      ///< memory
  std::weak_ptr<WorkerGroup> alive_group_ = group_.weak_from_this();  ///< once it has expired, nothing is in flight
  CommunicationOptions options_;
  std::string name_;
  bool on_gpu_;                                   ///< some replicas, or all
  bool is_staged_ = on_gpu_ && gpus_ == nullptr;  ///< GPU tensors go through host memory

  bool has_plan_ = false;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;          ///< per parameter; -1: in none
  std::vector<std::int64_t> begin_of_;  ///< position in its bucket

  std::vector<Load> loads_ = std::vector<Load>(
      replicas_.size(),
      {.hooks = std::vector<Hook>(group_of_.size()), .has_arrived = std::vector<char>(group_of_.size(), false)});
  std::deque<BucketInFlight> in_flight_;  ///< per bucket
  std::mutex mutex_;                      ///< guards what follows while backward runs
  std::size_t next_ = 0;                  ///< the next bucket to send
  std::size_t awaited_ = 0;               ///< buckets below it are complete
  std::exception_ptr failure_;

  /// Per parameter: sums that are not in a bucket.
  std::vector<at::Tensor> loose_ = std::vector<at::Tensor>(group_of_.size());
  std::vector<GradientKind> kinds_ = std::vector<GradientKind>(group_of_.size(), GradientKind::None);
  OutsideChanges outside_changes_{module_, group_of_};
};

}  // namespace lockstep::detail
