#include "lockstep/nn/step/worker_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/step_description.h"
#include "lockstep/strategy/same_on_workers.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {
namespace {

/// Small enough for the last one to be on its way soon after backward has ended, large enough to be worth a message.
constexpr std::size_t kBucketBytes = 1 << 20;

/// Tells a reducer that a gradient is there.
class Arrival final : public torch::autograd::FunctionPostHook {
 public:
  explicit Arrival(std::function<void()> tell) : tell_(std::move(tell)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    tell_();
    return outputs;
  }

 private:
  std::function<void()> tell_;
};

bool is_dense_in_order(const at::Tensor& gradient, const at::Tensor& leaf) {
  return gradient.strides() == leaf.strides() && gradient.is_non_overlapping_and_dense();
}

GradientKind merged(GradientKind a, GradientKind b, const std::string& name, const std::string& who) {
  if (a == GradientKind::None || a == b) return b;
  if (b == GradientKind::None) return a;
  throw InvalidArgument(errors::kOptimizer,
                        {.what = str("'", name, "' has a sparse gradient on one replica and a dense one on another"),
                         .seen = str(who, " has a ", b == GradientKind::Sparse ? "sparse" : "dense", " one"),
                         .help = "use the parameter in the same way on every replica"});
}

GradientKind kind_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return GradientKind::None;
  return gradient.is_sparse() ? GradientKind::Sparse : GradientKind::Dense;
}

}  // namespace

WorkerReducer::WorkerReducer(WorkerGroup& group, const ModuleCore& module, const std::vector<int>& group_of,
                             const Replicas& replicas, const CommunicationOptions& options, std::string name)
    : group_(group),
      alive_group_(group.weak_from_this()),
      module_(module),
      group_of_(group_of),
      replicas_(replicas),
      options_(options),
      name_(std::move(name)),
      loads_(replicas.size()),
      loose_(group_of.size()),
      kinds_(group_of.size(), GradientKind::None),
      outside_changes_(module, group_of) {
  for (Load& load : loads_) load.has_arrived.assign(group_of.size(), false);
  add_hooks();
}

WorkerReducer::~WorkerReducer() {
  // A step that failed half-way has left buckets under way. They end with the job, and must not outlive their memory. This
  // object may outlive the strategy, and with it the group; to keep the group would keep a job alive that has failed.
  const auto group = alive_group_.lock();
  for (std::size_t b = awaited_; group && b < next_; ++b) {
    try {
      group->wait(tickets_[b]);
    } catch (const std::exception&) {
    }
  }
  for (const Hook& hook : hooks_) hook.node->del_post_hook(hook.key);
}

void WorkerReducer::add_hooks() {
  for (std::size_t p = 0; p < group_of_.size(); ++p) {
    if (group_of_[p] < 0) continue;
    for (std::size_t k = 0; k < replicas_.size(); ++k) {
      at::Tensor leaf = module_.parameters()[p].leaves[k];
      const bool is_frozen = !leaf.requires_grad();
      if (is_frozen) leaf.requires_grad_(true);  // it may be unfrozen later, and only now can it be given a hook
      auto node = torch::autograd::impl::grad_accumulator(leaf);
      const auto key = node->add_post_hook(std::make_unique<Arrival>([this, k, p] { arrived(k, p); }));
      hooks_.push_back({std::move(node), key});
      if (is_frozen) leaf.requires_grad_(false);
    }
  }
}

void WorkerReducer::start(ReplicaPart& mine, ReduceOp op) {
  Load& load = loads_[static_cast<std::size_t>(mine.index)];
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
  if (load.has_arrived[p]) {  // a second time in one step: checkpointing, or a backward that was called again
    load.is_stale[bucket] = true;
    return;
  }
  load.has_arrived[p] = true;
  put(k, bucket, static_cast<std::size_t>(place_of_[p]), module_.parameters()[p].leaves[k].grad());
  if (--load.missing[bucket] == 0) bucket_is_loaded(bucket);
}

at::Tensor WorkerReducer::view_of(const at::Tensor& flat, std::size_t begin, std::size_t p) const {
  const at::Tensor& leaf = module_.parameters()[p].leaves[0];
  const auto from = static_cast<std::int64_t>(begin);
  if (leaf.is_non_overlapping_and_dense()) return flat.as_strided(leaf.sizes(), leaf.strides(), from);
  return flat.narrow(0, from, leaf.numel()).view(leaf.sizes());
}

void WorkerReducer::put(std::size_t k, std::size_t b, std::size_t i, const at::Tensor& gradient) {
  Load& load = loads_[k];
  const Bucket& bucket = buckets_[b];
  const auto p = static_cast<std::size_t>(bucket.parameters[i]);
  const bool is_dense = gradient.defined() && !gradient.is_sparse();
  if (bucket.parameters.size() == 1 && is_dense && is_dense_in_order(gradient, module_.parameters()[p].leaves[k])) {
    load.held[b] = gradient;
    inputs_[b][k] = gradient.const_data_ptr();
    return;
  }
  at::Tensor& flat = load.flats[b];
  if (!flat.defined()) flat = at::zeros_like(sums_[b]);  // gaps stay zero
  at::Tensor place = view_of(flat, bucket.begins[i], p);
  is_dense ? place.copy_(gradient) : place.zero_();
  inputs_[b][k] = flat.const_data_ptr();
}

void WorkerReducer::bucket_is_loaded(std::size_t b) {
  const int all = static_cast<int>(replicas_.size());
  if (loaded_[b].fetch_add(1, std::memory_order_acq_rel) + 1 < all) return;
  const std::lock_guard lock(mutex_);
  // In the order of the plan, on every worker.
  while (next_ < buckets_.size() && loaded_[next_].load(std::memory_order_acquire) == all && !failure_) {
    try {
      submit(next_);
      ++next_;
    } catch (...) {
      failure_ = std::current_exception();  // thrown where all replicas can be told
    }
  }
}

void WorkerReducer::submit(std::size_t b) {
  void* output = sums_[b].data_ptr();
  tickets_[b] = group_.submit(WorkerGroup::kGradients,
                              {.kind = CollectiveKind::AllReduce,
                               .dtype = buckets_[b].dtype,
                               .elements = buckets_[b].elements,
                               .inputs = inputs_[b],
                               .outputs = {&output, 1},
                               .reduce = op(),
                               .name = names_[b],
                               .implementation = options_.implementation},
                              deadline_of(options_));
}

const at::Tensor& WorkerReducer::shown(std::size_t k, std::size_t p) const { return replicas_[k]->shown.gradients[p]; }

void WorkerReducer::put_the_rest(std::size_t k) {
  Load& load = loads_[k];
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (load.missing[b] == 0) continue;
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      const auto p = static_cast<std::size_t>(buckets_[b].parameters[i]);
      if (!std::exchange(load.has_arrived[p], true)) put(k, b, i, shown(k, p));
    }
    load.missing[b] = 0;
    bucket_is_loaded(b);
  }
}

void WorkerReducer::bring_together(ReplicaPart& mine, ReduceOp op, const StepCall& call) {
  const at::NoGradGuard no_grad;
  const auto k = static_cast<std::size_t>(mine.index);
  if (!loads_[k].is_armed) loads_[k].op = op;
  if (has_plan_) put_the_rest(k);
  get_replica_context().seat()->lead(
      "gradients", &call,
      [&] {
        require_same_call(*get_replica_context().seat());
        agree(op, call);
        if (!has_plan_) {
          make_plan();
          for (std::size_t r = 0; r < loads_.size(); ++r) put_the_rest(r);
        }
        if (failure_) std::rethrow_exception(failure_);
        for (std::size_t p = 0; p < kinds_.size(); ++p) {
          loose_[p].reset();
          if (kinds_[p] == GradientKind::Sparse) gather_sparse(p);
          if (kinds_[p] == GradientKind::Dense && bucket_of_[p] < 0) reduce_loose(p);
        }
        for (std::size_t b = 0; b < buckets_.size(); ++b) {
          awaited_ = b + 1;
          group_.wait(tickets_[b]);
          if (loads_[0].is_stale[b]) send_again(b);
        }
        reset();
      },
      deadline_of(options_));
}

void WorkerReducer::agree(ReduceOp op, const StepCall& call) {
  // What the workers compare: settings, call and weights as a number each, then the kind of every gradient and which buckets
  // are stale.
  const std::size_t marks = 3;
  std::vector<std::int64_t> mine(marks + kinds_.size() + buckets_.size(), 0);
  mine[0] = static_cast<std::int64_t>(mark_of_settings(*call.optimizer));
  mine[1] = static_cast<std::int64_t>(mark_of_call(call, op));
  mine[2] = static_cast<std::int64_t>(outside_changes_.mark());
  for (std::size_t p = 0; p < kinds_.size(); ++p) {
    if (group_of_[p] < 0) continue;
    auto kind = GradientKind::None;
    for (std::size_t k = 0; k < replicas_.size(); ++k)
      kind = merged(kind, kind_of(shown(k, p)), module_.parameters()[p].name, str("replica ", k, " of this worker"));
    mine[marks + p] = static_cast<std::int64_t>(kind);
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const Load& load : loads_) mine[marks + kinds_.size() + b] |= load.is_stale[b] ? 1 : 0;
  }
  const auto gathered =
      workers::all_gather(group_, mine, str(name_, ", what gradients look like"), deadline_of(options_));
  std::vector<std::span<const std::int64_t>> all;
  for (std::size_t w = 0; w < static_cast<std::size_t>(group_.workers()); ++w)
    all.push_back(std::span(gathered).subspan(w * mine.size(), mine.size()));
  const auto differs = [&](std::size_t mark) {
    return std::ranges::any_of(all, [&](const auto& theirs) { return theirs[mark] != all[0][mark]; });
  };
  if (differs(0)) {
    workers::require_same(group_,
                          {.what = name_,
                           .lines = lines_of_settings(*call.optimizer),
                           .help = "set it on every worker, from a value that is the same on all of them, such as "
                                   "strategy.broadcast(rate) or a loss that strategy.reduce has brought together"},
                          str(name_, ", settings"), deadline_of(options_));
  }
  if (differs(1)) {
    workers::require_same(group_,
                          {.what = "the step",
                           .lines = lines_of_call(call, op),
                           .number = errors::kCollectiveMismatch,
                           .help = "call the same with the same arguments on every worker, and freeze the same "
                                   "parameters"},
                          str(name_, ", what the step is"), deadline_of(options_));
  }
  if (differs(2)) {
    workers::require_same(group_,
                          {.what = "the model",
                           .lines = outside_changes_.lines(),
                           .help = "change weights on every worker, and in the same way: with values from "
                                   "strategy.broadcast(tensor), or after torch::manual_seed with one number on all of "
                                   "them"},
                          str(name_, ", weights that the program has changed"), deadline_of(options_));
  }
  for (std::size_t p = 0; p < kinds_.size(); ++p) {
    kinds_[p] = GradientKind::None;
    for (std::size_t w = 0; w < all.size(); ++w)
      kinds_[p] = merged(kinds_[p], static_cast<GradientKind>(all[w][marks + p]), module_.parameters()[p].name,
                         str("worker ", w));
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const auto& theirs : all) loads_[0].is_stale[b] |= static_cast<char>(theirs[marks + kinds_.size() + b]);
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
  place_of_.assign(kinds_.size(), -1);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      const auto p = static_cast<std::size_t>(buckets_[b].parameters[i]);
      bucket_of_[p] = static_cast<int>(b);
      place_of_[p] = static_cast<int>(i);
    }
    const at::Tensor& like = module_.parameters()[static_cast<std::size_t>(buckets_[b].parameters[0])].leaves[0];
    sums_.push_back(at::zeros({static_cast<std::int64_t>(buckets_[b].elements)}, like.options().requires_grad(false)));
    names_.push_back(str(name_, ", ", buckets_[b].name));
  }
  inputs_.assign(buckets_.size(), std::vector<const void*>(replicas_.size(), nullptr));
  tickets_.resize(buckets_.size());
  loaded_ = std::make_unique<std::atomic<int>[]>(buckets_.size());
  for (Load& load : loads_) {
    load.flats.resize(buckets_.size());
    load.held.resize(buckets_.size());
  }
  has_plan_ = true;
  reset();
}

void WorkerReducer::reset() {
  next_ = 0;
  awaited_ = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) loaded_[b].store(0, std::memory_order_relaxed);
  for (Load& load : loads_) {
    load.is_armed = false;
    std::fill(load.has_arrived.begin(), load.has_arrived.end(), false);
    load.is_stale.assign(buckets_.size(), false);
    load.missing.clear();
    for (const Bucket& bucket : buckets_) load.missing.push_back(static_cast<int>(bucket.parameters.size()));
    for (at::Tensor& gradient : load.held) gradient.reset();
  }
}

void WorkerReducer::send_again(std::size_t b) {
  for (std::size_t k = 0; k < loads_.size(); ++k) {
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i)
      put(k, b, i, shown(k, static_cast<std::size_t>(buckets_[b].parameters[i])));
  }
  submit(b);
  group_.wait(tickets_[b]);
}

void WorkerReducer::gather_sparse(std::size_t p) {
  const at::Tensor& leaf = module_.parameters()[p].leaves[0];
  std::vector<at::Tensor> mine;  // indices and values of each replica; none where it has no gradient
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = shown(k, p);
    mine.push_back(gradient.defined() ? gradient._indices() : at::zeros({0}, at::kLong));
    mine.push_back(gradient.defined() ? gradient._values() : at::zeros({0}, leaf.options().requires_grad(false)));
  }
  const auto all = workers::all_gather(group_, mine, str(name_, ", sparse gradient of ", module_.parameters()[p].name),
                                       deadline_of(options_));
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    if (all[i].dim() < 2) continue;
    indices.push_back(all[i]);
    values.push_back(all[i + 1]);
  }
  at::Tensor all_values = at::cat(values);
  if (op() == ReduceOp::Mean) all_values = divide_sum(all_values, group_.all_replicas());
  loose_[p] = at::sparse_coo_tensor(at::cat(indices, 1), all_values, leaf.sizes(),
                                    leaf.options().requires_grad(false).layout(at::kSparse))
                  .coalesce();
}

void WorkerReducer::reduce_loose(std::size_t p) {
  const at::Tensor& leaf = module_.parameters()[p].leaves[0];
  std::vector<at::Tensor> components;
  for (std::size_t k = 0; k < replicas_.size(); ++k)
    components.push_back(shown(k, p).defined() ? shown(k, p) : at::zeros_like(leaf.detach()));
  const at::Tensor sum = workers::all_reduce(group_, op(), components,
                                             str(name_, ", gradient of ", module_.parameters()[p].name), options_);
  loose_[p] = at::empty_like(leaf.detach()).copy_(sum);
}

void WorkerReducer::survey(ReplicaPart& mine) { mine.kinds = kinds_; }

void WorkerReducer::reduce(ReplicaPart& mine, const ReduceRequest& request) {
  const at::NoGradGuard no_grad;
  mine.not_finite = {};
  mine.divisor = 1;
  for (OwnedSegment& segment : mine.owned) {
    const auto p = static_cast<std::size_t>(segment.where.parameter);
    segment.sum.reset();
    segment.parts.clear();
    if (kinds_[p] == GradientKind::None) continue;
    mine.owns_sparse |= kinds_[p] == GradientKind::Sparse;
    const auto b = static_cast<std::size_t>(bucket_of_[p]);
    segment.sum = loose_[p].defined()
                      ? loose_[p]
                      : view_of(sums_[b], buckets_[b].begins[static_cast<std::size_t>(place_of_[p])], p);
    if (request.may_leave_to_update && leave_to_update(segment)) continue;
    if (request.find_not_finite && mine.not_finite.parameter < 0) mine.not_finite = find_not_finite(segment);
  }
}

bool WorkerReducer::leave_to_update(OwnedSegment& segment) const {
  const bool is_plain = segment.weights.is_contiguous() && segment.weights.scalar_type() == at::kFloat &&
                        !segment.sum.is_sparse() && segment.sum.is_non_overlapping_and_dense();
  if (!is_plain) return false;
  segment.parts.push_back(const_data<float>(segment.sum) + segment.where.begin);
  segment.sum.reset();  // its memory is the reducer's
  return true;
}

NotFiniteSum WorkerReducer::find_not_finite(const OwnedSegment& segment) const {
  const auto is_finite = [](const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); };
  if (is_finite(segment.values())) return {};
  const auto p = static_cast<std::size_t>(segment.where.parameter);
  const int first_id = group_.rank() * group_.replicas();
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = shown(k, p);
    if (!gradient.defined()) continue;
    if (!is_finite(gradient.is_sparse() ? gradient._values() : slice_of(gradient, segment.where)))
      return {.parameter = segment.where.parameter, .replica = first_id + static_cast<int>(k)};
  }
  return {.parameter = segment.where.parameter, .replica = -1};
}

}  // namespace lockstep::detail
