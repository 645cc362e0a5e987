#include "lockstep/strategy/mirrored_strategy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/keep_memory.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/strategy/huge_blocks.h"
#include "lockstep/strategy/kernels/replica_kernels.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/thread_counts.h"

namespace lockstep {
namespace {

/// More is a mistake, and one that would end the process as soon as an operation starts them.
constexpr int kMostThreads = 4096;

std::vector<DeviceName> plan_devices(const MirroredOptions& options) {
  auto devices = plan_mirrored_devices(options.devices.value_or(local_devices(visible_gpus())));
  for (const auto& device : devices) require_here(device);
  return devices;
}

/// Threads that wait spin, which pays as long as there is a core for each of them.
std::chrono::nanoseconds plan_spin(int replicas) {
  return replicas <= usable_cores() ? std::chrono::microseconds(50) : std::chrono::microseconds(1);
}

/// Backward runs on the replica's own thread, on every device: collectives inside it then meet like those of forward.
class SingleThreadedBackward {
 public:
  SingleThreadedBackward() : outer_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~SingleThreadedBackward() { c10::AutogradState::get_tls_state().set_multithreading_enabled(outer_); }
  SingleThreadedBackward(const SingleThreadedBackward&) = delete;
  SingleThreadedBackward& operator=(const SingleThreadedBackward&) = delete;

 private:
  bool outer_;
};

/// Autocast remembers the weights it has cast. After the run they may change, so it must not remember them then. What
/// it remembers is shared by all threads, and a thread that leaves autocast clears everything, also what others still
/// use: whether a weight is cast once or twice in a pass, and so the rounding of its gradient, would depend on timing.
/// Several replicas therefore cast a weight whenever it is used.
class CastsInRun {
 public:
  explicit CastsInRun(bool several) : outer_(at::autocast::is_autocast_cache_enabled()) {
    if (several) at::autocast::set_autocast_cache_enabled(false);
  }
  ~CastsInRun() {
    at::autocast::set_autocast_cache_enabled(outer_);
    if (at::autocast::is_autocast_enabled(at::kCPU)) at::autocast::clear_cache();
  }
  CastsInRun(const CastsInRun&) = delete;
  CastsInRun& operator=(const CastsInRun&) = delete;

 private:
  bool outer_;
};

/// LibTorch's number of threads for operations called by this thread, until the end of the block.
class ThreadsInRun {
 public:
  explicit ThreadsInRun(int threads) : before_(at::get_num_threads()) { set_threads(threads); }
  ~ThreadsInRun() { set_threads(before_); }
  ThreadsInRun(const ThreadsInRun&) = delete;
  ThreadsInRun& operator=(const ThreadsInRun&) = delete;

 private:
  int before_;
};

int plan_threads(const MirroredOptions& options, int replicas) {
  if (options.intra_op_threads && (*options.intra_op_threads < 1 || *options.intra_op_threads > kMostThreads)) {
    throw InvalidArgument(errors::kBadOption, {.what = str("intra_op_threads must be between 1 and ", kMostThreads,
                                                           ", got ", *options.intra_op_threads),
                                               .help = "leave it unset to divide the cores among the replicas"});
  }
  if (options.intra_op_threads) return *options.intra_op_threads;
  // What OMP_NUM_THREADS or at::set_num_threads say holds here too: one replica has the bits of a plain program.
  const int threads = threads_without_strategies();
  return replicas == 1 ? threads : std::max(1, within_quota(threads) / replicas);
}

}  // namespace

class MirroredStrategy::Engine {
 public:
  Engine(const MirroredOptions& options, int replicas, bool on_cpu)
      : threads(plan_threads(options, replicas)),
        seed(options.seed.value_or(shared_generator_seed())),
        own_kernels(plan_own_kernels(options.fast_kernels, replicas, on_cpu)),
        threads_of_maker(threads),
        team({.size = replicas,
              .on_thread_start = [count = threads](int replica) { prepare_thread(replica, count); },
              .spin = plan_spin(replicas)}) {
    for (int k = 0; k < replicas; ++k) generators.push_back(at::detail::createCPUGenerator(replica_seed(seed, k)));
  }

  static void prepare_thread(int replica, int count) {
    pthread_setname_np(pthread_self(), str("lockstep-", replica).c_str());
    at::init_num_threads();
    set_threads(count);
  }

  int threads;
  std::uint64_t seed;
  OwnKernels own_kernels;
  ThreadsOfMaker threads_of_maker;
  std::vector<at::Generator> generators;
  local::ReplicaTeam team;
};

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy({.devices = plan_devices(options),
                .cross_device_ops = options.cross_device_ops,
                .communication = options.communication,
                .strict = options.strict}),
      engine_(std::make_unique<Engine>(options, num_local_replicas(), replica_context(0).device().is_cpu())) {
  if (options.keep_memory.value_or(replica_context(0).device().is_cpu())) {
    keep_freed_memory();
    keep_huge_blocks();
  }
}

MirroredStrategy::~MirroredStrategy() = default;

int MirroredStrategy::intra_op_threads() const { return engine_->threads; }
std::uint64_t MirroredStrategy::seed() const { return engine_->seed; }

void MirroredStrategy::run_replicas(FunctionRef<void(int, local::Seat*)> body) {
  const ThreadsInRun threads(engine_->threads);
  const at::ThreadLocalState callers_state;
  const SharedGenerator shared;
  const auto failure = engine_->team.run([&](local::Seat& seat) {
    const int k = seat.replica();
    std::optional<at::ThreadLocalStateGuard> inherited;
    if (k > 0) inherited.emplace(callers_state);
    const SingleThreadedBackward own_thread;
    const GeneratorScope own_numbers(&engine_->generators[static_cast<std::size_t>(k)]);
    const OwnKernelsScope kernels(engine_->own_kernels);
    const CastsInRun casts(seat.size() > 1);
    body(k, &seat);
  });
  if (failure) raise_failure(*failure);
  if (shared.was_seeded_since()) {
    throw FailedPrecondition(errors::kSeedInsideRun,
                             {.what = "torch::manual_seed was called inside a replica function",
                              .help = "call it before making the strategy, or set MirroredOptions{.seed = ...}; "
                                      "each replica draws from its own stream"});
  }
}

}  // namespace lockstep
