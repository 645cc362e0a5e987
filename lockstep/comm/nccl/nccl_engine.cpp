#include "lockstep/comm/nccl/nccl_engine.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "lockstep/comm/nccl/tree_sum.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::nccl {
namespace {

/// None: NCCL cannot sum such elements.
std::optional<ncclDataType_t> nccl_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::UInt8: return ncclUint8;
    case Dtype::Int8: return ncclInt8;
    case Dtype::Int32: return ncclInt32;
    case Dtype::Int64: return ncclInt64;
    case Dtype::Float16: return ncclFloat16;
    case Dtype::BFloat16: return ncclBfloat16;
    case Dtype::Float32: return ncclFloat32;
    case Dtype::Float64: return ncclFloat64;
    default: return std::nullopt;
  }
}

}  // namespace

struct Engine::Call : Collective {
  cudaStream_t stream;
  FunctionRef<void*(std::size_t)> allocate;
  ncclComm* comm;
  Deadline limit;
  std::string told;  ///< its name in errors
  std::int64_t divisor;
  void* room = nullptr;

  std::size_t width() const { return size_of(dtype); }
  void* at(const Part& part) const {
    const void* const begin = part.array == Part::Input    ? inputs[static_cast<std::size_t>(part.index)]
                              : part.array == Part::Output ? outputs[0]
                                                           : room;
    return static_cast<char*>(const_cast<void*>(begin)) + part.begin * width();
  }
  void copy(void* to, const void* from, std::size_t count) const {
    if (to != from && count > 0)
      require_cuda(cudaMemcpyAsync(to, from, count * width(), cudaMemcpyDeviceToDevice, stream));
  }
};

Engine::Engine(const EngineOptions& options)
    : rank_(options.connection.rank),
      workers_(options.connection.workers),
      replicas_(options.replicas),
      call_seconds_(options.call_seconds),
      plan_(engine::plan_sum(workers_, replicas_)),
      connection_(options.connection) {}

bool Engine::takes(int workers, int replicas) {
  const engine::SumPlan plan = engine::plan_sum(workers, replicas);
  return replicas <= kMostInputs &&
         std::ranges::all_of(plan.steps, [](const auto& inputs) { return inputs.size() <= kMostInputs; });
}

void Engine::start(const Collective& collective, cudaStream_t stream, FunctionRef<void*(std::size_t)> allocate,
                   Deadline limit) {
  if (limit.is_default() && call_seconds_ > 0) limit = Deadline::after(std::chrono::duration<double>(call_seconds_));
  const std::string told(collective.name.empty() ? to_string(collective.kind) : collective.name);
  const int divisor = collective.reduce == ReduceOp::Mean ? workers_ * replicas_ : 1;
  if (collective.kind == CollectiveKind::AllReduce || collective.kind == CollectiveKind::ReduceScatter)
    check_ordered_sum(collective.dtype, static_cast<int>(collective.inputs.size()), 1, divisor);
  connection_.start(stream, limit, told, [&](ncclComm* comm) {
    Call call{collective, stream, allocate, comm, limit, told, divisor};
    put(call);
  });
}

void Engine::put(Call& call) {
  switch (call.kind) {
    case CollectiveKind::AllReduce:
      call.implementation == Implementation::Nccl&& nccl_type(call.dtype) ? sum_by_nccl(call) : sum(call);
      break;
    case CollectiveKind::ReduceScatter: return sum(call);
    case CollectiveKind::Broadcast: {
      const void* const from = rank_ == call.root ? call.inputs[0] : call.outputs[0];
      finish(ncclBroadcast(from, call.outputs[0], call.elements * call.width(), ncclUint8, call.root, call.comm,
                           call.stream),
             call);
      break;
    }
    case CollectiveKind::AllGather: gather(call); break;
    case CollectiveKind::Barrier: {
      void* const any = call.allocate(1);
      return finish(ncclAllReduce(any, any, 1, ncclUint8, ncclMax, call.comm, call.stream), call);
    }
  }
  for (std::size_t k = 1; k < call.outputs.size(); ++k) call.copy(call.outputs[k], call.outputs[0], call.elements);
}

void Engine::sum(Call& call) {
  const auto result = call.kind == CollectiveKind::AllReduce ? Result::Everywhere : Result::Shard;
  const SumSchedule schedule =
      schedule_sum(plan_, rank_, engine::shards_of(call.elements, call.counts, workers_), result);
  if (schedule.room > 0) call.room = call.allocate(schedule.room * call.width());
  add(schedule.own, call);
  exchange(schedule.sends, schedule.receives, call);
  add(schedule.additions, call);
  exchange(schedule.shares, schedule.collects, call);
}

void Engine::sum_by_nccl(const Call& call) {
  void* const output = call.outputs[0];
  const void* from = call.inputs[0];
  if (call.inputs.size() > 1) {
    require_cuda(tree_sum(call.dtype, {call.inputs.begin(), call.inputs.end()}, output, call.elements, 1, call.stream));
    from = output;
  }
  finish(ncclAllReduce(from, output, call.elements, *nccl_type(call.dtype), ncclSum, call.comm, call.stream), call);
  if (call.divisor != 1) require_cuda(tree_sum(call.dtype, {output}, output, call.elements, call.divisor, call.stream));
}

void Engine::gather(const Call& call) {
  const auto shards = engine::shards_of(call.elements, call.counts, workers_);
  const std::size_t mine = shards[static_cast<std::size_t>(rank_)].size();
  std::vector<Transfer> sends, receives;
  for (int peer = 0; peer < workers_; ++peer) {
    const engine::Shard& theirs = shards[static_cast<std::size_t>(peer)];
    const Part place{Part::Output, 0, theirs.begin};
    if (peer == rank_) {
      call.copy(call.at(place), call.inputs[0], mine);
      continue;
    }
    if (mine > 0) sends.push_back({peer, {Part::Input, 0, 0}, mine});
    if (theirs.size() > 0) receives.push_back({peer, place, theirs.size()});
  }
  exchange(sends, receives, call);
}

void Engine::add(const std::vector<Addition>& additions, const Call& call) {
  for (const Addition& addition : additions) {
    std::vector<const void*> inputs;
    for (const Part& part : addition.inputs) inputs.push_back(call.at(part));
    require_cuda(tree_sum(call.dtype, inputs, call.at(addition.into), addition.elements,
                          addition.is_last ? call.divisor : 1, call.stream));
  }
}

void Engine::exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives, const Call& call) {
  if (sends.empty() && receives.empty()) return;
  ncclResult_t worst = ncclGroupStart();
  const auto note = [&](ncclResult_t result) {
    if (worst == ncclSuccess || worst == ncclInProgress) worst = result;
  };
  for (const Transfer& each : sends)
    note(ncclSend(call.at(each.part), each.elements * call.width(), ncclUint8, each.peer, call.comm, call.stream));
  for (const Transfer& each : receives)
    note(ncclRecv(call.at(each.part), each.elements * call.width(), ncclUint8, each.peer, call.comm, call.stream));
  note(ncclGroupEnd());  // also after an error
  finish(worst, call);
}

void Engine::finish(int result, const Call& call) { connection_.finish_call(result, call.limit, call.told); }

}  // namespace lockstep::nccl
