// The workers' agreement before a sum is used: the same call, the plan of buckets, and the gradients sent separately.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <span>

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/step_description.h"
#include "lockstep/nn/step/worker_reducer.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {

/// Small enough for the last one to be sent soon after backward has ended, large enough to be worth a message.
constexpr std::size_t kBucketBytes = 1 << 20;

void WorkerReducer::agree(ReduceOp op, const StepCall& call) {
  // Compared by the workers: settings, call, weights and observers' marks, one number each, then the kind of every
  // gradient and which buckets are stale.
  const std::size_t marks = 4;
  std::vector<std::int64_t> mine(marks + kinds_.size() + buckets_.size(), 0);
  mine[0] = static_cast<std::int64_t>(mark_of_settings(*call.optimizer));
  mine[1] = static_cast<std::int64_t>(mark_of_call(call, op));
  mine[2] = static_cast<std::int64_t>(outside_changes_.mark());
  mine[3] = static_cast<std::int64_t>(fnv1a(std::span<const std::int64_t>(replicas_[0]->shown.marks)));
  classify_gradients(*call.optimizer, kinds_);
  std::ranges::transform(kinds_, mine.begin() + marks,
                         [](GradientKind kind) { return static_cast<std::int64_t>(kind); });
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const Load& load : loads_) mine[marks + kinds_.size() + b] |= load.parts[b].is_stale ? 1 : 0;
  }
  const auto gathered =
      workers::all_gather(group_, mine, str(name_, ", what gradients look like"), deadline_of(options_));
  std::vector<std::span<const std::int64_t>> all;
  for (std::size_t w = 0; w < static_cast<std::size_t>(group_.workers()); ++w)
    all.push_back(std::span(gathered).subspan(w * mine.size(), mine.size()));
  const auto differs = [&](std::size_t mark) {
    return std::ranges::any_of(all, [&](const auto& theirs) { return theirs[mark] != all[0][mark]; });
  };
  // The descriptions behind the numbers show which workers differ.
  const auto require_same = [&](const char* what, const workers::Description& description) {
    workers::require_same(group_, description, str(name_, ", ", what), deadline_of(options_));
  };
  if (differs(0))
    require_same("settings", {.what = name_,
                              .lines = lines_of_settings(*call.optimizer),
                              .help = "set it on every worker, from a value that is the same on all of them, such as "
                                      "strategy.broadcast(rate) or a loss that strategy.reduce has brought together"});
  if (differs(1))
    require_same("what the step is",
                 {.what = "the step",
                  .lines = lines_of_call(call, op),
                  .number = errors::kCollectiveMismatch,
                  .help = "call the same with the same arguments on every worker, and freeze the same parameters"});
  if (differs(2))
    require_same("weights that the program has changed",
                 {.what = "the model",
                  .lines = outside_changes_.lines(),
                  .help = "change weights on every worker, and in the same way: with values from "
                          "strategy.broadcast(tensor), or after torch::manual_seed with one number on all of them"});
  if (differs(3)) compare_marks(*call.optimizer, call.call);
  for (std::size_t p = 0; p < kinds_.size(); ++p) {
    kinds_[p] = GradientKind::None;
    for (std::size_t w = 0; w < all.size(); ++w) {
      const auto theirs = static_cast<GradientKind>(all[w][marks + p]);
      if (theirs == GradientKind::None) continue;
      if (kinds_[p] != GradientKind::None && kinds_[p] != theirs)
        throw_different_kinds(module_.parameters()[p].name, str("worker ", w), theirs);
      kinds_[p] = theirs;
    }
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const auto& theirs : all) loads_[0].parts[b].is_stale |= theirs[marks + kinds_.size() + b] != 0;
  }
}

void WorkerReducer::compare_marks(const OptimizerCore& core, const char* call) {
  const std::string name = str(name_, ", what observers compare");
  const std::size_t observers = core.observers.all.size();
  workers::require_same(group_, {.what = name_, .lines = {str("observers: ", observers)}}, name, deadline_of(options_));
  const auto gathered = workers::all_gather(group_, replicas_[0]->shown.marks, name, deadline_of(options_));
  for (std::size_t i = 0; i < observers; ++i) {
    std::vector<std::int64_t> marks;
    for (std::size_t w = 0; w < static_cast<std::size_t>(group_.workers()); ++w)
      marks.push_back(gathered[w * observers + i]);
    if (std::ranges::count(marks, marks.front()) == std::ssize(marks)) continue;
    core.observers.all[i]->marks_differ({core, *replicas_[0], call}, marks, "worker");
  }
}

void WorkerReducer::make_plan() {
  const at::Tensor order = workers::broadcast(group_, at::tensor(loads_[0].order, at::kInt),
                                              str(name_, ", order of gradients"), deadline_of(options_));
  const std::vector<int> chiefs_order(const_data<int>(order), const_data<int>(order) + order.numel());

  std::vector<BucketedParameter> parameters;
  for (std::size_t p = 0; p < kinds_.size(); ++p) {
    const auto& parameter = module_.parameters()[p];
    const auto dtype = engine_dtype(parameter.leaves[0].scalar_type());
    parameters.push_back({.name = parameter.name,
                          .elements = static_cast<std::size_t>(parameter.leaves[0].numel()),
                          .dtype = dtype.value_or(Dtype::Float32),
                          .travels = group_of_[p] >= 0 && dtype && kinds_[p] != GradientKind::Sparse});
  }
  const auto bytes = static_cast<std::size_t>(options_.bytes_per_pack);
  buckets_ = plan_buckets(parameters, chiefs_order, bytes > 0 ? bytes : kBucketBytes);
  bucket_of_.assign(kinds_.size(), -1);
  begin_of_.assign(kinds_.size(), 0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      const auto p = static_cast<std::size_t>(buckets_[b].parameters[i]);
      bucket_of_[p] = static_cast<int>(b);
      begin_of_[p] = static_cast<std::int64_t>(buckets_[b].begins[i]);
    }
    const at::Tensor& like = module_.parameters()[static_cast<std::size_t>(buckets_[b].parameters[0])].leaves[0];
    BucketInFlight& bucket = in_flight_.emplace_back();
    at::Tensor& sum = bucket.result =
        at::zeros({static_cast<std::int64_t>(buckets_[b].elements)}, like.options().requires_grad(false));
    if (is_staged_) bucket.host_result = gpu::make_pinned(sum.sizes(), sum.scalar_type());
    bucket.sum = {.kind = CollectiveKind::AllReduce,
                  .dtype = buckets_[b].dtype,
                  .elements = buckets_[b].elements,
                  .inputs = std::vector<const void*>(replicas_.size(), nullptr),
                  .outputs = {(is_staged_ ? bucket.host_result : sum).data_ptr()},
                  .name = str(name_, ", ", buckets_[b].name),
                  .implementation = options_.implementation};
  }
  for (Load& load : loads_) load.parts.resize(buckets_.size());
  has_plan_ = true;
  reset();
}

void WorkerReducer::gather_sparse(std::size_t p) {
  const at::Tensor& leaf = module_.parameters()[p].leaves[0];
  std::vector<at::Tensor> mine;  // indices and values of each replica; none if it has no gradient
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = replicas_[k]->shown.gradients[p];
    mine.push_back(gradient.defined() ? gradient._indices() : at::zeros({0}, at::kLong));
    mine.push_back(gradient.defined() ? gradient._values() : at::zeros({0}, leaf.options().requires_grad(false)));
  }
  const auto all = workers::all_gather(group_, mine, str(name_, ", sparse gradient of ", module_.parameters()[p].name),
                                       deadline_of(options_));
  std::vector<at::Tensor> indices, values;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    if (all[i].dim() < 2) continue;
    indices.push_back(all[i].to(leaf.device()));
    values.push_back(all[i + 1].to(leaf.device()));
  }
  loose_[p] = sum_of_rows(indices, values, leaf, op() == ReduceOp::Mean ? group_.all_replicas() : 1);
}

void WorkerReducer::reduce_loose(std::size_t p) {
  const at::Tensor& leaf = module_.parameters()[p].leaves[0];
  std::vector<at::Tensor> components;
  for (std::size_t k = 0; k < replicas_.size(); ++k)
    components.push_back(replicas_[k]->shown.gradients[p].defined() ? replicas_[k]->shown.gradients[p]
                                                                    : at::zeros_like(leaf.detach()));
  const at::Tensor sum = workers::all_reduce(group_, op(), components,
                                             str(name_, ", gradient of ", module_.parameters()[p].name), options_);
  loose_[p] = at::empty_like(leaf.detach()).copy_(sum);
}

}  // namespace lockstep::detail
