#include "lockstep/strategy/local_replicas.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/AutogradState.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/keep_memory.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/autocast_state.h"
#include "lockstep/strategy/detail/in_turn.h"
#include "lockstep/strategy/huge_blocks.h"
#include "lockstep/strategy/replica_random.h"

namespace lockstep {
namespace {

/// More is a mistake, and one that would end the process as soon as an operation starts them.
constexpr int kMostThreads = 4096;

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

/// LibTorch's vector functions on x86 are MKL's, which chooses its code at the first call of each. Where the first calls came
/// from several replicas at the same time, about one program run in ten had other last bits after the first step of Adam (PyTorch
/// 2.11, 6 replicas on 16 cores); with every function called once before, 80 runs agreed.
void call_vector_functions_once() {
  static const bool is_done = [] {
    const at::NoGradGuard no_grad;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({64}, 0.5, type);
      for (const at::Tensor& y :
           {x.sqrt(), x.rsqrt(),  x.exp(),    x.expm1(),   x.log(),   x.log10(), x.log1p(), x.log2(),  x.sin(),
            x.cos(),  x.tan(),    x.tanh(),   x.sinh(),    x.cosh(),  x.asin(),  x.acos(),  x.atan(),  x.erf(),
            x.erfc(), x.erfinv(), x.lgamma(), x.sigmoid(), x.trunc(), x.ceil(),  x.floor(), x.round(), x.pow(1.5)})
        static_cast<void>(y);
    }
    return true;
  }();
  static_cast<void>(is_done);
}

bool are_cpus(const std::vector<at::Device>& devices) { return std::ranges::all_of(devices, &at::Device::is_cpu); }

void prepare_thread(int replica, int count) {
  pthread_setname_np(pthread_self(), str("lockstep-", replica).c_str());
  at::init_num_threads();
  set_threads(count);
}

}  // namespace

int plan_intra_op_threads(const std::optional<int>& wanted, int replicas_on_this_host) {
  if (wanted && (*wanted < 1 || *wanted > kMostThreads)) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("intra_op_threads must be between 1 and ", kMostThreads, ", got ", *wanted),
                           .help = "leave it unset to divide the cores among the replicas"});
  }
  if (wanted) return *wanted;
  // What OMP_NUM_THREADS or at::set_num_threads say holds here too: one replica has the bits of a plain program.
  const int threads = threads_without_strategies();
  return replicas_on_this_host == 1 ? threads : std::max(1, within_quota(threads) / replicas_on_this_host);
}

LocalReplicas::LocalReplicas(const LocalReplicasOptions& options)
    : threads_(plan_intra_op_threads(options.intra_op_threads, options.on_this_host)),
      first_id_(options.first_id),
      seed_(options.seed),
      are_several_(options.all_replicas > 1),
      // By the replicas of all workers: bits must not depend on where replicas are.
      own_kernels_(plan_own_kernels(options.fast_kernels, options.all_replicas, are_cpus(options.devices))),
      threads_of_maker_(threads_),
      devices_(options.devices),
      streams_(are_cpus(devices_) ? nullptr : gpu::make_streams(devices_)),
      team_({.size = options.replicas,
             .first_id = options.first_id,
             .on_thread_start = [count = threads_](int replica) { prepare_thread(replica, count); },
             .spin = plan_spin(options.on_this_host),
             .deferred = streams_.get()}) {
  call_vector_functions_once();  // the threads do nothing before the first run
  generators_.resize(static_cast<std::size_t>(options.replicas));
  set_seed(options.seed);
  if (options.keep_memory.value_or(are_cpus(devices_))) {
    keep_freed_memory();
    keep_huge_blocks();
  }
}

void LocalReplicas::set_seed(std::uint64_t seed) {
  const SharedGenerator seen;  // what it was seeded with until now is not meant for the next run
  seed_ = seed;
  ++times_seeded_;
  has_run_ = is_seeded_in_vain_ = false;
  for (std::size_t k = 0; k < generators_.size(); ++k) {
    const std::uint64_t own = are_several_ ? replica_seed(seed, first_id_ + static_cast<int>(k)) : seed;
    ReplicaGenerators kept = std::exchange(
        generators_[k], are_several_ ? make_generators(devices_[k], own) : shared_generators(devices_[k]));
    if (!kept.gpu.defined()) continue;
    kept.gpu.set_current_seed(own);
    generators_[k].gpu = kept.gpu;  // which recorded steps draw from
    kept.recurrent->was_replaced = true;
  }
}

void LocalReplicas::note_restored_streams(std::uint64_t seed) {
  const SharedGenerator seen;  // restoring LibTorch's generator is no seeding
  seed_ = seed;
  ++times_seeded_;
  has_run_ = true;
  is_seeded_in_vain_ = false;
}

std::shared_ptr<gpu::Graph> LocalReplicas::make_graph() const {
  const at::Device first = devices_.front();
  if (!first.is_cuda() || std::ranges::count(devices_, first) != std::ssize(devices_)) return nullptr;
  return gpu::make_graph(first, generators_);
}

std::optional<local::ReplicaFailure> LocalReplicas::run(FunctionRef<void(int, local::Seat*)> body) {
  const ThreadsInRun threads(threads_);
  return are_several_ ? run_watching_seeds(body) : run_team(body);
}

std::optional<local::ReplicaFailure> LocalReplicas::run_team(FunctionRef<void(int, local::Seat*)> body) {
  const at::ThreadLocalState callers_state;
  return team_.run([&](local::Seat& seat) {
    const int k = seat.replica();
    std::optional<at::ThreadLocalStateGuard> inherited;
    if (k > 0) inherited.emplace(callers_state);
    const auto own_stream = streams_ ? streams_->enter(k) : nullptr;
    const SingleThreadedBackward own_thread;
    const GeneratorScope own_numbers(&generators_[static_cast<std::size_t>(k)]);
    const OwnKernelsScope kernels(own_kernels_);
    const detail::CastsInRun casts(are_several_);
    body(k, &seat);
  });
}

/// Several replicas do not draw from LibTorch's generator, so seeding it may not do what the program expects.
std::optional<local::ReplicaFailure> LocalReplicas::run_watching_seeds(FunctionRef<void(int, local::Seat*)> body) {
  const SharedGenerator shared;
  if (shared.was_seeded_before()) is_seeded_in_vain_ = has_run_ || shared_generator_seed() != seed_;
  std::optional<DrawWatch> first;
  if (is_seeded_in_vain_) first.emplace(generators_[0]);
  has_run_ = true;
  const int seeded_before = times_seeded_;
  auto failure = run_team(body);
  if (!failure && times_seeded_ == seeded_before && shared.was_seeded_since()) {
    throw FailedPrecondition(errors::kSeedInsideRun,
                             {.what = "torch::manual_seed was called inside a replica function",
                              .help = "call it before making the strategy, or set the strategy's option .seed; "
                                      "strategy.set_seed(seed) between runs restarts the numbers. "
                                      "Each of several replicas draws from its own stream"});
  }
  if (first && first->has_drawn()) {
    is_seeded_in_vain_ = false;
    if (!std::exchange(has_warned_of_seed_, true)) {
      say_warning(
          "torch::manual_seed was called between runs and does not reach the replicas, which draw from streams of their "
          "own. Call strategy.set_seed(seed) to restart these, or torch::manual_seed before the strategy is made");
    }
  }
  return failure;
}

detail::InTurn::InTurn(bool in_turn) { local::RunInTurn::set(in_turn); }
detail::InTurn::~InTurn() { local::RunInTurn::set(false); }

}  // namespace lockstep
