#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/engine/collective.h"
#include "lockstep/comm/tls_files.h"

namespace lockstep {

namespace gpu {
class GpuWorkers;  // strategy/gpu.h
}

/// A worker's view of the other workers of a job: all a strategy needs to train together with them. Implemented by
/// Lockstep::cluster; nothing here depends on gRPC, Gloo or torch.
///
/// All calls may come from any thread. After the first failure of the job every call throws it, the same on all
/// workers.
class LOCKSTEP_EXPORT WorkerGroup : public std::enable_shared_from_this<WorkerGroup> {
 public:
  /// Independent sequences of collectives: the order of the program's own ones relative to those for gradients differs
  /// between workers.
  enum Channel { kProgram = 0, kGradients = 1 };
  using Ticket = std::uint64_t;

  struct Shape {
    int rank = 0;      ///< this worker; the chief is 0
    int workers = 1;   ///< number of workers in the job
    int replicas = 1;  ///< replicas of each worker
  };

  explicit WorkerGroup(const Shape& shape) : shape_(shape) {}
  virtual ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  int rank() const { return shape_.rank; }
  int workers() const { return shape_.workers; }
  int replicas() const { return shape_.replicas; }
  int all_replicas() const { return shape_.workers * shape_.replicas; }

  /// Direct communication between GPUs; null: GPU data goes through host memory.
  gpu::GpuWorkers* gpu_workers() const { return gpu_workers_.get(); }
  void set_gpu_workers(std::shared_ptr<gpu::GpuWorkers> gpu_workers) { gpu_workers_ = std::move(gpu_workers); }

  /// Begins a collective, which owns its arrays until `wait` has returned; everything else is copied.
  virtual Ticket submit(Channel channel, const Collective& collective, Deadline limit) = 0;
  virtual void wait(Ticket ticket) = 0;
  void run(Channel channel, const Collective& collective, Deadline limit) { wait(submit(channel, collective, limit)); }

  /// Separate from the program's other collectives, so that a worker that calls something else is noticed at once.
  void barrier(std::string_view name, Deadline deadline) {
    run(kProgram, {.kind = CollectiveKind::Barrier, .name = std::string(name)}, deadline);
  }

  /// Throws once the job has failed. Cheap.
  virtual void check() {}

  /// Sets this worker's activity for error messages on the others: "call 812 of run". Cheap.
  virtual void set_place(std::string_view place) = 0;

  /// Reports that this worker's program failed: ends the job on all workers with this reason. Does nothing if the job
  /// has failed already.
  virtual void report(const Error& error) = 0;
  virtual void report(const std::string& what) = 0;

 private:
  Shape shape_;
  std::shared_ptr<gpu::GpuWorkers> gpu_workers_;
};

/// A strategy's parameters for joining the others.
struct WorkerGroupOptions {
  ClusterDescription cluster;
  int replicas = 1;
  /// Facts that must be the same on all workers, a line each: "strict: true".
  std::vector<std::string> facts = {};
  std::string machine = {};  ///< the kind of this machine; a different kind is a warning on the chief
  double join_seconds = 300;
  double collective_seconds = 0;  ///< the limit of collectives that name none; 0: none
  bool ring = false;              ///< Implementation::Ring will be asked for
  std::string bind_address = {};  ///< address of the data port; empty: the cluster entry's
  int data_port = 0;              ///< 0: a free one
  TlsFiles tls = {};
};

using WorkerGroupMaker = std::shared_ptr<WorkerGroup> (*)(const WorkerGroupOptions& options);

/// Called by Lockstep::cluster when it is loaded. Returns the previous one.
LOCKSTEP_EXPORT WorkerGroupMaker set_worker_group_maker(WorkerGroupMaker maker);

/// Joins the other workers and returns when all have joined. Without Lockstep::cluster it throws an error that names it.
LOCKSTEP_EXPORT std::shared_ptr<WorkerGroup> join_workers(const WorkerGroupOptions& options);

/// The facts that determine how sums are sent between workers.
struct CommunicationFacts {
  Implementation asked = Implementation::Auto;
  bool on_cpu = true;
  bool by_nccl = false;  ///< gradients go from GPU to GPU
  int workers = 1;
  int on_this_host = 1;  ///< workers with the address of this one, itself included
};

/// How sums of all sizes are sent, in one line for people.
LOCKSTEP_EXPORT std::string describe_routes(const CommunicationFacts& facts);

}  // namespace lockstep
