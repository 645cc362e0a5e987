#include "lockstep/nn/step/worker_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/local/replica_team.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {

WorkerReducer::WorkerReducer(WorkerGroup& group, const ModuleCore& module, const std::vector<int>& group_of,
                             const Replicas& replicas, const CommunicationOptions& options, std::string name)
    : GradientReducer(module, group_of, replicas),
      group_(group),
      options_(options),
      name_(std::move(name)),
      on_gpu_(std::ranges::any_of(module.copies().first, [&](std::size_t k) { return device_of(k).is_cuda(); })) {}

WorkerReducer::~WorkerReducer() {
  // A step that failed half-way left buckets in flight. They end with the job, and must not outlive their memory. This
  // object may outlive the strategy, and with it the group; keeping the group would keep a failed job alive.
  const auto group = alive_group_.lock();
  for (std::size_t b = awaited_; group && b < next_; ++b) {
    try {
      group->wait(in_flight_[b].ticket);
    } catch (const std::exception&) {
    }
  }
  for (const Load& load : loads_) {
    for (const Hook& hook : load.hooks) {
      if (hook.node) hook.node->del_post_hook(hook.key);
    }
  }
}

void WorkerReducer::start(ReplicaPart& mine, ReduceOp op) {
  const auto k = static_cast<std::size_t>(mine.index);
  Load& load = loads_[k];
  // On the replica's own thread, after its forward: LibTorch keeps the stream on which a node was made, and accumulates
  // gradients there.
  for (std::size_t p = 0; p < group_of_.size(); ++p) {
    Hook& hook = load.hooks[p];
    const at::Tensor& leaf = module_.parameters()[p].leaves[k];
    if (group_of_[p] < 0 || hook.node || !leaf.requires_grad()) continue;
    hook.node = torch::autograd::impl::grad_accumulator(leaf);
    hook.key = hook.node->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>([this, k, p](const auto& outputs, const auto&) {
          arrived(k, p);
          return outputs;
        }));
  }
  load.is_armed = true;
  load.op = op;
}

void WorkerReducer::arrived(std::size_t k, std::size_t p) {
  Load& load = loads_[k];
  if (!load.is_armed) return;
  if (!has_plan_) {
    load.order.push_back(static_cast<int>(p));
    return;
  }
  const int b = bucket_of_[p];
  if (b < 0) return;
  const at::NoGradGuard no_grad;
  const auto bucket = static_cast<std::size_t>(b);
  if (load.has_arrived[p]) {  // again in one step: checkpointing, or backward was called twice
    load.parts[bucket].is_stale = true;
    return;
  }
  load.has_arrived[p] = true;
  put(k, p, module_.parameters()[p].leaves[k].grad());
  if (--load.parts[bucket].missing == 0) bucket_is_loaded(k, bucket);
}

at::Tensor WorkerReducer::view_of(const at::Tensor& flat, std::size_t p) const {
  const at::Tensor& leaf = module_.parameters()[p].leaves[0];
  if (leaf.is_non_overlapping_and_dense()) return flat.as_strided(leaf.sizes(), leaf.strides(), begin_of_[p]);
  return flat.narrow(0, begin_of_[p], leaf.numel()).view(leaf.sizes());
}

void WorkerReducer::put(std::size_t k, std::size_t p, const at::Tensor& gradient) {
  const auto b = static_cast<std::size_t>(bucket_of_[p]);
  Part& part = loads_[k].parts[b];
  BucketInFlight& bucket = in_flight_[b];
  const bool is_dense = gradient.defined() && !gradient.is_sparse();
  const bool is_alone = buckets_[b].parameters.size() == 1 && is_dense && !is_staged_;
  if (is_alone && gradient.strides() == module_.parameters()[p].leaves[k].strides() &&
      gradient.is_non_overlapping_and_dense()) {
    part.held = gradient;
    bucket.sum.inputs[k] = gradient.const_data_ptr();
    return;
  }
  if (!part.flat.defined()) {  // gaps stay zero
    const at::Tensor& like = bucket.result;
    part.flat = is_staged_ ? gpu::make_pinned(like.sizes(), like.scalar_type()).zero_()
                           : at::zeros_like(like, at::TensorOptions(device_of(k)));
  }
  at::Tensor place = view_of(part.flat, p);
  is_dense ? place.copy_(gradient, /*non_blocking=*/true) : place.zero_();
  bucket.sum.inputs[k] = part.flat.const_data_ptr();
}

void WorkerReducer::bucket_is_loaded(std::size_t k, std::size_t b) {
  if (on_gpu_) return mark_copies(k, b);
  const int all = static_cast<int>(replicas_.size());
  if (in_flight_[b].loaded.fetch_add(1, std::memory_order_acq_rel) + 1 < all) return;
  const std::lock_guard lock(mutex_);
  // In plan order on every worker.
  while (next_ < buckets_.size() && in_flight_[next_].loaded.load(std::memory_order_acquire) == all && !failure_) {
    try {
      submit(next_);
      ++next_;
    } catch (...) {
      failure_ = std::current_exception();  // thrown when all replicas can see it
    }
  }
}

void WorkerReducer::mark_copies(std::size_t k, std::size_t b) {
  if (device_of(k).is_cuda()) loads_[k].parts[b].copied = gpu::mark_this_stream(device_of(k));
}

void WorkerReducer::await_copies(std::size_t b) const {
  for (const Load& load : loads_) {
    if (load.parts[b].copied) load.parts[b].copied->wait_on_host();
  }
}

void WorkerReducer::submit(std::size_t b) {
  BucketInFlight& bucket = in_flight_[b];
  bucket.sum.reduce = op();
  bucket.ticket = group_.submit(WorkerGroup::kGradients, bucket.sum, deadline_of(options_));
}

void WorkerReducer::sum_between_gpus() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    std::vector<std::shared_ptr<gpu::Arrival>> after;
    if (loads_[0].parts[b].is_stale) put_again(b);
    for (const Load& load : loads_) after.push_back(load.parts[b].copied);
    in_flight_[b].sum.reduce = op();
    gpus_->start(in_flight_[b].sum, after, deadline_of(options_));
  }
  gpus_->wait();  // an error here leaves the weights unchanged
}

void WorkerReducer::send_from_gpu() {
  for (; next_ < buckets_.size(); ++next_) {
    await_copies(next_);
    submit(next_);
  }
}

void WorkerReducer::put_missing(std::size_t k) {
  Load& load = loads_[k];
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (load.parts[b].missing == 0) continue;
    for (const int p : buckets_[b].parameters) {
      if (!std::exchange(load.has_arrived[p], true)) put(k, p, replicas_[k]->shown.gradients[p]);
    }
    load.parts[b].missing = 0;
    bucket_is_loaded(k, b);
  }
}

void WorkerReducer::exchange(ReplicaPart& mine, ReduceOp op, const StepCall& call) {
  const at::NoGradGuard no_grad;
  const auto k = static_cast<std::size_t>(mine.index);
  if (!loads_[k].is_armed) loads_[k].op = op;
  if (has_plan_) put_missing(k);
  get_replica_context().seat()->lead(
      "gradients", &call,
      [&] {
        require_same_call(*get_replica_context().seat());
        if (is_staged_ && has_plan_) send_from_gpu();
        agree(op, call);
        if (!has_plan_) {
          make_plan();
          for (std::size_t r = 0; r < loads_.size(); ++r) put_missing(r);
          if (is_staged_) send_from_gpu();
        }
        if (gpus_ != nullptr) sum_between_gpus();
        if (failure_) std::rethrow_exception(failure_);
        for (std::size_t p = 0; p < kinds_.size(); ++p) {
          loose_[p].reset();
          if (kinds_[p] == GradientKind::Sparse) gather_sparse(p);
          if (kinds_[p] == GradientKind::Dense && bucket_of_[p] < 0) reduce_loose(p);
        }
        for (std::size_t b = 0; b < next_; ++b) {
          awaited_ = b + 1;
          group_.wait(in_flight_[b].ticket);
          if (loads_[0].parts[b].is_stale) {
            put_again(b);
            await_copies(b);
            submit(b);
            group_.wait(in_flight_[b].ticket);
          }
          if (is_staged_) in_flight_[b].result.copy_(in_flight_[b].host_result, /*non_blocking=*/true);
        }
        for (const auto& replica : replicas_) replica->kinds = kinds_;
        reset();
      },
      deadline_of(options_));
}

void WorkerReducer::reset() {
  next_ = 0;
  awaited_ = 0;
  for (BucketInFlight& bucket : in_flight_) bucket.loaded.store(0, std::memory_order_relaxed);
  for (Load& load : loads_) {
    load.is_armed = false;
    std::fill(load.has_arrived.begin(), load.has_arrived.end(), false);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Part& part = load.parts[b];
      part = {.missing = buckets_[b].parameters.size(), .flat = part.flat};
    }
  }
}

void WorkerReducer::put_again(std::size_t b) {
  for (std::size_t k = 0; k < loads_.size(); ++k) {
    for (const int p : buckets_[b].parameters) put(k, p, replicas_[k]->shown.gradients[p]);
    mark_copies(k, b);
  }
}

void WorkerReducer::reduce(ReplicaPart& mine, ReduceOp) {
  const at::NoGradGuard no_grad;
  mine.reduced = {};
  for (OwnedSegment& segment : mine.owned) {
    const auto p = static_cast<std::size_t>(segment.where.parameter);
    segment.sum.reset();
    segment.parts.clear();
    if (kinds_[p] == GradientKind::None) continue;
    mine.owns_sparse |= kinds_[p] == GradientKind::Sparse;
    segment.sum = loose_[p].defined() ? loose_[p] : view_of(in_flight_[bucket_of_[p]].result, p);
    if (mine.plan.leaves_to_update && leave_to_update(mine, segment)) continue;
    segment.sum = gpu::bring_here(segment.sum, device_of(mine));
    if (mine.plan.finite != StepPlan::Finite::Host || mine.reduced.not_finite.parameter >= 0 ||
        is_finite(segment.values()))
      continue;
    const int found = not_finite_here(segment);
    mine.reduced.not_finite = {.parameter = segment.where.parameter,
                               .replica = found < 0 ? -1 : group_.rank() * group_.replicas() + found};
  }
}

bool WorkerReducer::leave_to_update(ReplicaPart& mine, OwnedSegment& segment) const {
  const bool is_plain = segment.weights.is_contiguous() && segment.weights.scalar_type() == at::kFloat &&
                        !segment.sum.is_sparse() && segment.sum.is_non_overlapping_and_dense();
  if (!is_plain) return false;
  const WeightCopies& copies = module_.copies();
  const auto [p, begin, end] = segment.where;
  const bool is_pulled = on_gpu_ && !copies.in_reach && !copies.share(static_cast<std::size_t>(mine.index), 0);
  if (is_pulled) mine.reduced.pulled.push_back(gpu::pull_elements(segment.sum, begin, end - begin, device_of(mine)));
  segment.parts.push_back(is_pulled ? const_data<float>(mine.reduced.pulled.back())
                                    : const_data<float>(segment.sum) + begin);
  segment.sum.reset();  // its memory is the reducer's
  return true;
}

}  // namespace lockstep::detail
