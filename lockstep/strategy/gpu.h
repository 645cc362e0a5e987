#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/replica_random.h"

// All that the rest of this floor knows of GPUs. Built with LOCKSTEP_CUDA it is what cuda/ does; without, gpu_absent.cpp
// stands in, which has no GPU.
namespace lockstep::gpu {

bool is_built();

/// How many GPUs the process sees; 0 where Lockstep or LibTorch is built without them.
int visible();

/// LibTorch's, from now on, in the whole process.
void use_deterministic_algorithms();

/// A generator with numbers of its own on `device`.
at::Generator make_generator(at::Device device, std::uint64_t seed);
/// A count that grows with each draw since it was seeded; 0 of an undefined one, and while a graph is recorded.
std::uint64_t numbers_drawn(const at::Generator& generator);
/// Likewise of LibTorch's generator of the current GPU; 0 if there is none.
std::uint64_t shared_numbers_drawn();

/// The allocator must not hand out the tensor's memory again before what the calling thread has started so far is done.
/// For a tensor that another replica has made, and that this one uses after their meeting.
void keep_for_this_stream(const at::Tensor& tensor);

/// The streams of the replicas. Replica 0 works on the caller's current stream of its GPU, the others each on their own.
/// Streams wait for each other by events, and no thread waits for a GPU: when a run begins and ends, and at meetings. On
/// several GPUs the caller's current streams of the others count as replica 0's too: merge functions may use them. A replica
/// on the CPU has a stream of the first GPU, too; its thread waits for what the others have started before it goes on.
class ReplicaStreams : public local::DeferredWork {
 public:
  /// On a replica's thread, as long as its function runs: its device and stream are the current ones.
  class Scope {
   public:
    virtual ~Scope() = default;
  };
  virtual std::unique_ptr<Scope> enter(int replica) = 0;
};

/// `devices`: of each replica.
std::unique_ptr<ReplicaStreams> make_streams(const std::vector<at::Device>& devices);

/// Whether kernels on each of them can use the memory of all of them, from now on.
bool reach_each_other(const std::vector<at::Device>& devices);

// Between GPUs. On the thread of a replica that has met with the others; on its own stream, so that it is done when the
// others have met with it again.
/// The tensor, or a copy of it on `here`, if both are on CPUs or GPUs.
at::Tensor bring_here(const at::Tensor& tensor, at::Device here);
/// Some elements of a dense tensor, in the order of memory, as a new one on `here`.
at::Tensor pull_elements(const at::Tensor& from, std::int64_t begin, std::int64_t count, at::Device here);
/// Copies them from the calling replica's GPU to the same place of a tensor that has the same form.
void push_elements(const at::Tensor& from, const at::Tensor& into, std::int64_t begin, std::int64_t count);

/// What runs start on a GPU, recorded once and repeated as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Calls `run`, whose GPU work is recorded and not done. Throws what it throws, or why it cannot be recorded; the GPU can then
  /// be used as before, and all generators give the numbers that they would have given before.
  virtual void record(FunctionRef<void()> run) = 0;
  /// Starts all of it on the caller's stream, with the next random numbers.
  virtual void replay() = 0;
  /// Whether these are the replicas' still. Only those of dropout in LSTMs and GRUs may be others after a new seed.
  virtual bool draws_for_replicas() const = 0;
};

/// `generators`: those of the replicas.
std::shared_ptr<Graph> make_graph(at::Device device, const std::vector<ReplicaGenerators>& generators);

/// Copies each tensor into the other of its place, which has its size and type and is on the same GPU.
void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& into);

/// What was started on a stream up to some moment.
class Arrival {
 public:
  virtual ~Arrival() = default;
  /// What the calling thread starts from now on comes after it, on its GPU and on the thread's current one.
  virtual void await() = 0;
  /// The calling thread itself waits until it is done.
  virtual void wait_on_host() = 0;
};

/// What the calling thread has started so far on the GPU.
std::shared_ptr<Arrival> mark_this_stream(at::Device device);

/// A tensor for the host to read and write, and for a GPU to copy from and to without waiting.
at::Tensor make_pinned(at::IntArrayRef sizes, at::ScalarType type);

/// Copies to a GPU on a stream of their own, from pinned memory, while the GPU computes.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  /// Starts a copy. `from` may be written to again when this returns.
  virtual at::Tensor copy(const at::Tensor& from) = 0;
  /// The copies that were started so far.
  virtual std::shared_ptr<Arrival> mark() = 0;
};

std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

/// Collectives from GPU to GPU between workers. Those of each worker are reached through its first one.
class GpuWorkers {
 public:
  virtual ~GpuWorkers() = default;
  /// Starts a collective whose results are on the worker's first GPU, and its inputs within reach of that, after all of `after`. All workers start the same ones in the same order.
  virtual void start(const Collective& collective, const std::vector<std::shared_ptr<Arrival>>& after,
                     Deadline limit) = 0;
  /// The calling thread waits until all of them are done, and throws if one has failed.
  virtual void wait() = 0;
};

/// The version of NCCL; empty where it is not built in.
std::string nccl_version();

/// Connects the GPUs of all workers, which all call it. Null where they go through host memory: NCCL is not built in, two
/// workers have the same first GPU, or a worker's devices do not reach each other's memory. That is an error if NCCL was asked
/// for. `devices`: of this worker's replicas. It uses the group from a thread of its own.
std::shared_ptr<GpuWorkers> connect_workers(WorkerGroup& group, const std::vector<at::Device>& devices,
                                            const CommunicationOptions& options, double join_seconds,
                                            double collective_seconds);

/// While it is held, no `DefaultGeneratorScope` lives: LibTorch's default generator of `device` has its own numbers.
std::unique_lock<std::recursive_mutex> hold_default_generator(at::Device device);

/// While it lives, operators without a generator argument that draw on the GPU (dropout, attention) take the numbers of
/// `generator` instead of LibTorch's. One thread at a time: it holds a lock.
class DefaultGeneratorScope {
 public:
  explicit DefaultGeneratorScope(const at::Generator& generator);
  ~DefaultGeneratorScope();
  DefaultGeneratorScope(const DefaultGeneratorScope&) = delete;
  DefaultGeneratorScope& operator=(const DefaultGeneratorScope&) = delete;

 private:
  at::Generator shared_;
  std::unique_lock<std::recursive_mutex> lock_;
  at::Generator outer_;
};

}  // namespace lockstep::gpu
