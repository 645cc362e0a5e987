#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cuda/device_numbers.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/values/const_data.h"

// The update on the GPU: sums are made and applied in one kernel, with numbers that another kernel has worked out before.
namespace lockstep::detail {
namespace {

enum class Kind { None, Sgd, Adam, AdamW };

Kind kind_of(const OptimizerCore& core) {
  // Exactly these types: a class derived from one of them may do something else.
  const torch::optim::Optimizer& inner = *core.replicas.front()->inner;
  if (typeid(inner) == typeid(torch::optim::SGD)) return Kind::Sgd;
  if (typeid(inner) == typeid(torch::optim::Adam)) return Kind::Adam;
  if (typeid(inner) == typeid(torch::optim::AdamW)) return Kind::AdamW;
  return Kind::None;
}

template <class Options>
bool without_amsgrad(const OptimizerCore& core) {
  return std::all_of(core.groups.begin(), core.groups.end(), [](const OptimizerGroup& group) {
    return !static_cast<const Options&>(*group.options).amsgrad();
  });
}

template <class Options>
void fill_in(const torch::optim::OptimizerOptions& any, gpu::GroupNumbers& numbers) {
  const auto& options = static_cast<const Options&>(any);
  numbers.learning_rate = options.lr();
  numbers.beta1 = std::get<0>(options.betas());
  numbers.beta2 = std::get<1>(options.betas());
  numbers.eps = options.eps();
  numbers.weight_decay = options.weight_decay();
  numbers.is_adamw = std::is_same_v<Options, torch::optim::AdamWOptions> ? 1 : 0;
}

/// Padding is zero too: groups are compared by their bytes.
gpu::GroupNumbers numbers_of(Kind kind, const torch::optim::OptimizerOptions& options) {
  gpu::GroupNumbers numbers;
  std::memset(&numbers, 0, sizeof numbers);
  if (kind == Kind::Adam) fill_in<torch::optim::AdamOptions>(options, numbers);
  if (kind == Kind::AdamW) fill_in<torch::optim::AdamWOptions>(options, numbers);
  if (kind == Kind::Sgd) {
    const SgdNumbers sgd = sgd_numbers(options);
    numbers.sgd.learning_rate = sgd.learning_rate;
    numbers.sgd.momentum = sgd.momentum;
    numbers.sgd.one_less_dampening = sgd.one_less_dampening;
    numbers.sgd.weight_decay = sgd.weight_decay;
    numbers.sgd.nesterov = sgd.nesterov;
  }
  return numbers;
}

bool are_equal(const gpu::GroupNumbers& a, const gpu::GroupNumbers& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::int64_t* count_of(DeviceNumbers& numbers, std::size_t segment) {
  return numbers.counts.mutable_data_ptr<std::int64_t>() + segment;
}

/// The state of a segment, made at its first step.
template <class State>
State& adam_state(OptimizerCore& core, ReplicaPart& mine, const OwnedSegment& segment) {
  auto& kept = mine.inner->state()[segment.weights.unsafeGetTensorImpl()];
  if (!kept) {
    refuse_if_recording(core, "a parameter has its first gradient");
    auto fresh = std::make_unique<State>();
    fresh->step(0);
    fresh->exp_avg(at::zeros_like(segment.weights));
    fresh->exp_avg_sq(at::zeros_like(segment.weights));
    kept = std::move(fresh);
  }
  return static_cast<State&>(*kept);
}

template <class State>
void add_adam_state(OptimizerCore& core, ReplicaPart& mine, const OwnedSegment& segment, gpu::SegmentMemory& memory) {
  auto& state = adam_state<State>(core, mine, segment);
  memory.first_state = state.exp_avg().template mutable_data_ptr<float>();
  memory.second_state = state.exp_avg_sq().template mutable_data_ptr<float>();
}

void add_momentum(OptimizerCore& core, ReplicaPart& mine, std::size_t i, gpu::SegmentMemory& memory,
                  cudaStream_t stream) {
  const OwnedSegment& segment = mine.owned[i];
  if (!sgd_numbers(*core.groups[segment.group].options).has_momentum) return;
  at::Tensor& momentum = sgd_momentum_buffer(*mine.inner, segment.weights);
  if (!momentum.defined()) {
    refuse_if_recording(core, "a parameter has its first momentum");
    momentum = at::zeros_like(segment.weights);
    C10_CUDA_CHECK(cudaMemsetAsync(count_of(*mine.numbers, i), 0, sizeof(std::int64_t), stream));
  }
  memory.first_state = momentum.mutable_data_ptr<float>();
}

/// What the inner optimizer says: for Adam the number of steps, for SGD whether there is momentum.
std::int64_t counted_by_inner(Kind kind, ReplicaPart& mine, const OwnedSegment& segment) {
  const auto& states = mine.inner->state();
  const auto found = states.find(segment.weights.unsafeGetTensorImpl());
  if (found == states.end()) return 0;
  switch (kind) {
    case Kind::Sgd: return sgd_momentum_buffer(*mine.inner, segment.weights).defined() ? 1 : 0;
    case Kind::Adam: return static_cast<const torch::optim::AdamParamState&>(*found->second).step();
    case Kind::AdamW: return static_cast<const torch::optim::AdamWParamState&>(*found->second).step();
    case Kind::None: break;
  }
  return 0;
}

/// False: what it remembers of the segment is gone, because its first step was skipped.
bool tell_inner(Kind kind, ReplicaPart& mine, const OwnedSegment& segment, std::int64_t count) {
  auto& states = mine.inner->state();
  const auto found = states.find(segment.weights.unsafeGetTensorImpl());
  if (found == states.end()) return true;
  if (kind == Kind::Adam) static_cast<torch::optim::AdamParamState&>(*found->second).step(count);
  if (kind == Kind::AdamW) static_cast<torch::optim::AdamWParamState&>(*found->second).step(count);
  if (kind != Kind::Sgd || count > 0) return true;
  states.erase(found);
  return false;
}

void throw_not_finite(const OptimizerCore& core, const ReplicaPart& mine, gpu::BadSum bad) {
  const auto replica = static_cast<int>(bad & 0xff);
  const std::string& name = core.module->parameters()[bad >> 8].name;
  throw FailedPrecondition(
      errors::kNotFinite,
      {.what = str("the gradient of '", name, "' held NaN or infinity in an earlier step"),
       .where = str("step ", mine.steps, ", from ",
                    replica == gpu::kNoReplica ? "one of the replicas, or from adding up" : str("replica ", replica)),
       .seen = "neither that step nor a later one has changed the weights",
       .help = "lower the learning rate or clip; set_not_finite(NotFinite::SkipStep) skips such steps"});
}

/// Which segments take part, and what they are made of.
struct Work {
  std::vector<gpu::StepRow> rows;
  gpu::Segments segments;
};

Work work_of(OptimizerCore& core, ReplicaPart& mine, Kind kind, cudaStream_t stream) {
  Work work;
  for (std::size_t i = 0; i < mine.owned.size(); ++i) {
    OwnedSegment& segment = mine.owned[i];
    if (segment.parts.empty()) continue;
    segment.is_counted_on_device = true;
    gpu::SegmentMemory memory{.target = segment.weights.mutable_data_ptr<float>(),
                              .gradients = segment.parts.data(),
                              .elements = segment.weights.numel()};
    if (kind == Kind::Sgd) add_momentum(core, mine, i, memory, stream);
    if (kind == Kind::Adam) add_adam_state<torch::optim::AdamParamState>(core, mine, segment, memory);
    if (kind == Kind::AdamW) add_adam_state<torch::optim::AdamWParamState>(core, mine, segment, memory);
    if (memory.elements == 0) continue;
    work.rows.push_back({static_cast<int>(i), static_cast<int>(segment.group)});
    work.segments.push_back(memory);
  }
  return work;
}

}  // namespace

DeviceNumbers::DeviceNumbers(const OptimizerCore& core, ReplicaPart& mine) {
  const Kind kind = kind_of(core);
  const at::Device device = mine.owned.front().weights.device();
  const auto bytes = at::TensorOptions(device).dtype(at::kByte);
  const auto of_size = [](std::size_t count, std::size_t each) { return static_cast<std::int64_t>(count * each); };
  std::vector<std::int64_t> before;
  for (const OwnedSegment& segment : mine.owned) before.push_back(counted_by_inner(kind, mine, segment));
  groups = at::zeros({of_size(core.groups.size(), sizeof(gpu::GroupNumbers))}, bytes);
  steps = at::zeros({of_size(mine.owned.size(), std::max(sizeof(gpu::SgdStep), sizeof(gpu::AdamStep)))}, bytes);
  counts = at::tensor(before, at::kLong).to(device);
  static_assert(sizeof(gpu::CheckResult) == 2 * sizeof(std::int64_t) && offsetof(gpu::CheckResult, bad) == 0);
  results = at::tensor({std::int64_t{-1}, std::int64_t{0}}, at::kLong).to(device);
  on_host = at::empty({2}, at::TensorOptions(at::kLong).pinned_memory(true));
}

bool DeviceNumbers::is_current(const OptimizerCore& core) const {
  if (sent.size() != core.groups.size()) return false;
  const Kind kind = kind_of(core);
  for (std::size_t g = 0; g < sent.size(); ++g) {
    if (!are_equal(sent[g], numbers_of(kind, *core.groups[g].options))) return false;
  }
  return true;
}

void DeviceNumbers::send_options(const OptimizerCore& core) {
  const Kind kind = kind_of(core);
  auto* const into = reinterpret_cast<gpu::GroupNumbers*>(groups.mutable_data_ptr<std::uint8_t>());
  const bool is_first = sent.empty();
  sent.resize(core.groups.size());
  for (std::size_t g = 0; g < sent.size(); ++g) {
    const gpu::GroupNumbers now = numbers_of(kind, *core.groups[g].options);
    if (!is_first && are_equal(sent[g], now)) continue;
    C10_CUDA_CHECK(gpu::set_group(now, into + g, current_stream(groups)));
    sent[g] = now;
  }
}

bool has_device_update(const OptimizerCore& core) {
  const auto& parameters = core.module->parameters();
  if (parameters.empty() || !parameters.front().leaves.front().is_cuda() ||
      core.replicas.size() > static_cast<std::size_t>(gpu::kMostReplicas))
    return false;
  switch (kind_of(core)) {
    case Kind::Sgd: return true;
    case Kind::Adam: return without_amsgrad<torch::optim::AdamOptions>(core);
    case Kind::AdamW: return without_amsgrad<torch::optim::AdamWOptions>(core);
    case Kind::None: break;
  }
  return false;
}

void leave_sums_to_device(ReplicaPart& mine) {
  const auto has_parts = [](const OwnedSegment& segment) { return !segment.parts.empty(); };
  // Where the reduction has left what it could to the update, the rest is not for it.
  if (std::any_of(mine.owned.begin(), mine.owned.end(), has_parts)) return;
  mine.divisor = 1;
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined() || segment.sum.is_sparse() || !segment.weights.is_contiguous() ||
        segment.weights.scalar_type() != at::kFloat)
      continue;
    segment.parts.push_back(const_data<float>(segment.sum) + segment.where.begin);
  }
}

void update_on_device(OptimizerCore& core, ReplicaPart& mine) {
  const auto first = std::find_if(mine.owned.begin(), mine.owned.end(),
                                  [](const OwnedSegment& segment) { return !segment.parts.empty(); });
  if (first == mine.owned.end()) return;
  const c10::cuda::CUDAGuard device(first->weights.device());
  const cudaStream_t stream = current_stream(first->weights);
  if (!mine.numbers) {
    refuse_if_recording(core, "it is the optimizer's first step");
    mine.numbers = std::make_shared<DeviceNumbers>(core, mine);
  }
  DeviceNumbers& numbers = *mine.numbers;
  if (!numbers.is_current(core)) {
    refuse_if_recording(core, "the optimizer's options were changed");
    numbers.send_options(core);
  }
  const Kind kind = kind_of(core);
  const auto replicas = static_cast<int>(first->parts.size());
  const Work work = work_of(core, mine, kind, stream);
  gpu::StepMemory memory{
      .groups = reinterpret_cast<const gpu::GroupNumbers*>(numbers.groups.mutable_data_ptr<std::uint8_t>()),
      .counts = count_of(numbers, 0),
      .result = numbers.result()};
  if (mine.checks_on_device) {
    memory.bad_sums = reinterpret_cast<const gpu::BadSum*>(core.device_bad_sums.mutable_data_ptr<std::int64_t>());
    memory.replicas = static_cast<int>(core.replicas.size());
    memory.skips_all = core.settings.not_finite == NotFinite::Raise && !mine.scale;
    numbers.has_checked = true;
  }
  numbers.has_counted = true;
  if (kind == Kind::Sgd) {
    auto* const steps = numbers.steps_for<gpu::SgdStep>();
    C10_CUDA_CHECK(gpu::prepare_steps(memory, work.rows, steps, stream));
    C10_CUDA_CHECK(gpu::update_sgd(work.segments, replicas, mine.divisor, steps, stream));
  } else {
    auto* const steps = numbers.steps_for<gpu::AdamStep>();
    C10_CUDA_CHECK(gpu::prepare_steps(memory, work.rows, steps, stream));
    C10_CUDA_CHECK(gpu::update_adam(work.segments, replicas, mine.divisor, steps, stream));
  }
}

void settle_counts(const OptimizerCore& core, ReplicaPart& mine) {
  if (!mine.numbers || !mine.numbers->has_counted) return;
  DeviceNumbers& numbers = *mine.numbers;
  const Kind kind = kind_of(core);
  numbers.has_counted = false;
  const at::Tensor counts = numbers.counts.cpu();
  const auto* const counted = const_data<std::int64_t>(counts);
  bool are_all_there = true;
  for (std::size_t i = 0; i < mine.owned.size(); ++i)
    are_all_there &= tell_inner(kind, mine, mine.owned[i], counted[i]);
  settle_checks(core, mine);
  if (!are_all_there) mine.numbers.reset();
}

void settle_checks(const OptimizerCore& core, ReplicaPart& mine) {
  if (!mine.numbers || !mine.numbers->has_checked) return;
  DeviceNumbers& numbers = *mine.numbers;
  numbers.has_checked = numbers.is_under_way = false;
  const at::Tensor seen = numbers.results.cpu();
  const auto* const result = const_data<std::int64_t>(seen);
  const c10::cuda::CUDAGuard device(numbers.results.device());
  const std::int64_t nothing[2] = {-1, 0};
  C10_CUDA_CHECK(cudaMemcpyAsync(numbers.result(), nothing, sizeof nothing, cudaMemcpyHostToDevice,
                                 current_stream(numbers.results)));
  mine.steps -= result[1];
  if (result[0] != -1) throw_not_finite(core, mine, static_cast<gpu::BadSum>(result[0]));
  mine.skipped += result[1];
}

void send_check(const OptimizerCore& core, ReplicaPart& mine) {
  if (core.settings.not_finite != NotFinite::Raise || !mine.numbers || !mine.numbers->has_checked) return;
  DeviceNumbers& numbers = *mine.numbers;
  numbers.on_host.copy_(numbers.results, /*non_blocking=*/true);
  numbers.arrival.record(c10::cuda::getCurrentCUDAStream(numbers.results.device().index()));
  numbers.is_under_way = true;
}

void receive_check(const OptimizerCore& core, ReplicaPart& mine) {
  if (!mine.numbers || !mine.numbers->is_under_way) return;
  DeviceNumbers& numbers = *mine.numbers;
  numbers.is_under_way = false;
  numbers.arrival.synchronize();
  if (const_data<std::int64_t>(numbers.on_host)[0] != -1) settle_checks(core, mine);
}

void send_options_to_device(const OptimizerCore& core, ReplicaPart& mine) {
  const c10::cuda::CUDAGuard device(mine.numbers->groups.device());
  mine.numbers->send_options(core);
}

void note_replay_on_device(const OptimizerCore& core, ReplicaPart& mine, bool is_scaled) {
  mine.numbers->has_counted = true;
  mine.numbers->has_checked |= is_scaled || core.settings.not_finite != NotFinite::Ignore;
}

bool can_check_on_device(const OptimizerCore& core, const ReplicaPart& mine) {
  return core.on_device && has_device_update(core) && can_clip_on_device(core, mine);
}

void check_on_device(OptimizerCore& core, ReplicaPart& mine) {
  const c10::cuda::CUDAGuard device(core.device_bad_sums.device());
  gpu::Segments segments;
  std::vector<int> parameters;
  std::vector<const float*> sums(mine.owned.size());
  int replicas = 1;
  bool are_sums = false;
  for (std::size_t i = 0; i < mine.owned.size(); ++i) {
    const OwnedSegment& segment = mine.owned[i];
    if (!segment.has_gradient()) continue;
    if (segment.parts.empty()) {
      sums[i] = const_data<float>(segment.sum) + segment.where.begin;
      are_sums = core.replicas.size() > 1;
    } else {
      replicas = static_cast<int>(segment.parts.size());
    }
    segments.push_back({.gradients = segment.parts.empty() ? &sums[i] : segment.parts.data(),
                        .elements = segment.where.end - segment.where.begin});
    parameters.push_back(segment.where.parameter);
  }
  auto* const bad = reinterpret_cast<gpu::BadSum*>(core.device_bad_sums.mutable_data_ptr<std::int64_t>()) + mine.index;
  C10_CUDA_CHECK(gpu::find_bad_sum(segments, parameters, replicas, are_sums, bad, current_stream(core.device_bad_sums)));
}

}  // namespace lockstep::detail
