#include "core_bench.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep::bench {
namespace {

using benchmark::IterationCount;
using benchmark::State;
using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// Many short rounds: other work on the machine then disturbs only some of them and not the median.
constexpr int kRounds = 51;
constexpr IterationCount kCalls = 500;

constexpr std::int64_t kKilobyte = 1 << 10;
constexpr std::int64_t kMegabyte = 1 << 20;

std::string size_text(std::int64_t bytes) {
  return bytes < kMegabyte ? str(bytes / kKilobyte, "KB") : str(bytes / kMegabyte, "MB");
}

at::Tensor floats(std::int64_t bytes, double value) {
  return at::full({bytes / static_cast<std::int64_t>(sizeof(float))}, value, at::kFloat);
}

/// Times `call(replica)` inside one run. All replicas make the same number of calls; replica 0, which is the calling
/// thread, measures.
template <class MakeCall>
void time_inside_run(State& state, Strategy& strategy, const MakeCall& make_call) {
  strategy.run([&] {
    ReplicaContext& replica = get_replica_context();
    const auto call = make_call(replica);
    for (IterationCount i = 0; i < state.max_iterations; ++i) call();  // memory and caches as in the steady state
    if (replica.local_index() == 0) {
      for (auto _ : state) call();
    } else {
      for (IterationCount i = 0; i < state.max_iterations; ++i) call();
    }
  });
}

void empty_run(State& state, int replicas) {
  MirroredStrategy strategy({.devices = cpus(replicas)});
  for (int i = 0; i < 10; ++i) strategy.run([] {});
  for (auto _ : state) strategy.run([] {});
}

void all_reduce(State& state, int replicas, std::int64_t bytes) {
  MirroredStrategy strategy({.devices = cpus(replicas)});
  time_inside_run(state, strategy, [&](ReplicaContext& replica) {
    return [&replica, mine = floats(bytes, replica.replica_id_in_sync_group())] {
      benchmark::DoNotOptimize(replica.all_reduce(ReduceOp::Sum, mine));
    };
  });
  // Every replica's value is read and every replica's result is written.
  state.SetBytesProcessed(state.iterations() * 2 * replicas * bytes);
}

void empty_merge_call(State& state, int replicas) {
  MirroredStrategy strategy({.devices = cpus(replicas)});
  time_inside_run(state, strategy,
                  [](ReplicaContext& replica) { return [&replica] { replica.merge_call([](Strategy&) {}); }; });
}

void merge_call_with_tensor(State& state, int replicas) {
  MirroredStrategy strategy({.devices = cpus(replicas)});
  time_inside_run(state, strategy, [](ReplicaContext& replica) {
    return [&replica, mine = floats(kKilobyte, replica.replica_id_in_sync_group())] {
      benchmark::DoNotOptimize(
          replica.merge_call([](Strategy&, const PerReplica<at::Tensor>& all) { return all; }, mine));
    };
  });
}

/// Times two peers in turn. The order changes every round.
template <class Ours, class Theirs>
void alternate(int round, const Ours& ours, const Theirs& theirs) {
  if (round % 2 == 0) {
    ours();
    theirs();
  } else {
    theirs();
    ours();
  }
}

/// An all-reduce on two replicas reads two values and writes two results. So does the plain copy: each of the two
/// threads copies its own value.
void all_reduce_against_copy(State& state, std::int64_t bytes) {
  static int round = 0;
  ++round;
  double reduce_seconds = 0;
  double copy_seconds = 0;
  MirroredStrategy strategy({.devices = cpus(2)});
  for (auto _ : state) {
    strategy.run([&] {
      ReplicaContext& replica = get_replica_context();
      const at::Tensor mine = floats(bytes, replica.replica_id_in_sync_group());
      const at::Tensor copied = floats(bytes, 0);
      const auto timed = [&](const auto& work, double& seconds) {
        const auto meet = [&] { replica.merge_call([](Strategy&) {}); };
        work();
        meet();
        const auto start = Clock::now();
        work();
        meet();
        if (replica.local_index() == 0) seconds = Seconds(Clock::now() - start).count();
      };
      alternate(
          round,
          [&] { timed([&] { benchmark::DoNotOptimize(replica.all_reduce(ReduceOp::Sum, mine)); }, reduce_seconds); },
          [&] {
            timed([&] { std::memcpy(copied.mutable_data_ptr(), mine.const_data_ptr(), mine.nbytes()); }, copy_seconds);
          });
    });
    state.SetIterationTime(reduce_seconds);
  }
  state.counters["copy_ms"] = copy_seconds * 1e3;
  state.counters["ratio"] = reduce_seconds / copy_seconds;
}

/// The cost of a strategy with one replica over a direct call.
template <class Work>
void one_replica_against_direct(State& state, const Work& work) {
  static int round = 0;
  ++round;
  constexpr int kInner = 200;
  MirroredStrategy strategy({.devices = cpus(1)});
  const auto per_call = [](const auto& call) {
    call();
    const auto start = Clock::now();
    for (int i = 0; i < kInner; ++i) call();
    return Seconds(Clock::now() - start).count() / kInner;
  };
  double ours = 0;
  double direct = 0;
  for (auto _ : state) {
    alternate(
        round, [&] { ours = per_call([&] { strategy.run(work); }); }, [&] { direct = per_call(work); });
    state.SetIterationTime(ours);
  }
  state.counters["direct_us"] = direct * 1e6;
  state.counters["over_direct_us"] = (ours - direct) * 1e6;
}

template <class Function>
auto* add(const std::string& name, const Function& function) {
  return in_rounds(benchmark::RegisterBenchmark(name.c_str(), function), kRounds);
}

}  // namespace

std::vector<Goal> register_core_benchmarks() {
  for (const int replicas : {1, 2, 4}) {
    add(str("run/replicas:", replicas), [=](State& state) { empty_run(state, replicas); })
        ->Iterations(kCalls)
        ->UseRealTime();
  }

  add("one_replica/empty", [](State& state) { one_replica_against_direct(state, [] { benchmark::ClobberMemory(); }); })
      ->Iterations(1)
      ->UseManualTime();
  add("one_replica/add_1KB",
      [](State& state) {
        const at::Tensor a = floats(kKilobyte, 1);
        one_replica_against_direct(state, [&] { return at::add(a, a); });
      })
      ->Iterations(1)
      ->UseManualTime();

  for (const int replicas : {1, 2, 4}) {
    add(str("merge_call/replicas:", replicas), [=](State& state) { empty_merge_call(state, replicas); })
        ->Iterations(kCalls)
        ->UseRealTime();
    add(str("merge_call/replicas:", replicas, "/tensor"),
        [=](State& state) { merge_call_with_tensor(state, replicas); })
        ->Iterations(kCalls)
        ->UseRealTime();
  }

  for (const int replicas : {1, 2, 4}) {
    for (std::int64_t bytes = kKilobyte; bytes <= 64 * kMegabyte; bytes *= 16) {
      add(str("all_reduce/replicas:", replicas, "/", size_text(bytes)),
          [=](State& state) { all_reduce(state, replicas, bytes); })
          ->Iterations(std::clamp<IterationCount>(kMegabyte / bytes, 2, kCalls))
          ->UseRealTime();
    }
  }

  add("all_reduce_against_copy/64MB", [](State& state) { all_reduce_against_copy(state, 64 * kMegabyte); })
      ->Iterations(1)
      ->UseManualTime();

  return {
      {.what = "empty run, 2 replicas", .benchmark = "run/replicas:2", .limit = 5},
      {.what = "all_reduce of 1 KB, 2 replicas", .benchmark = "all_reduce/replicas:2/1KB", .limit = 5},
      {.what = "all_reduce of 64 MB, 2 replicas, over a plain copy",
       .benchmark = "all_reduce_against_copy/64MB",
       .counter = "ratio",
       .limit = 1.5,
       .unit = "x"},
      {.what = "merge_call of a tensor, 2 replicas", .benchmark = "merge_call/replicas:2/tensor", .limit = 10},
      {.what = "run on 1 replica, over a direct call",
       .benchmark = "one_replica/add_1KB",
       .counter = "over_direct_us",
       .limit = 1},
  };
}

}  // namespace lockstep::bench
