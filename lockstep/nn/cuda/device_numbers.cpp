#include "lockstep/nn/cuda/device_numbers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/fused_sgd.h"
#include "lockstep/nn/fused_update.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/const_data.h"

// The numbers of a step in GPU memory: optimizer options sent there, counts and check results sent back.
namespace lockstep::detail {
namespace {

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

/// Zeroes the padding too: groups are compared bytewise.
gpu::GroupNumbers numbers_of(FusedClass kind, const torch::optim::OptimizerOptions& options) {
  gpu::GroupNumbers numbers;
  std::memset(&numbers, 0, sizeof numbers);
  if (kind == FusedClass::Adam) fill_in<torch::optim::AdamOptions>(options, numbers);
  if (kind == FusedClass::AdamW) fill_in<torch::optim::AdamWOptions>(options, numbers);
  if (kind == FusedClass::Sgd) {
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

/// The inner optimizer's state: for Adam the number of steps, for SGD whether there is momentum.
std::int64_t counted_by_inner(FusedClass kind, ReplicaPart& mine, const OwnedSegment& segment) {
  const auto& states = mine.inner->state();
  const auto found = states.find(segment.weights.unsafeGetTensorImpl());
  if (found == states.end()) return 0;
  switch (kind) {
    case FusedClass::Sgd: return sgd_momentum_buffer(*mine.inner, segment.weights).defined() ? 1 : 0;
    case FusedClass::Adam: return static_cast<const torch::optim::AdamParamState&>(*found->second).step();
    case FusedClass::AdamW: return static_cast<const torch::optim::AdamWParamState&>(*found->second).step();
    case FusedClass::None: break;
  }
  return 0;
}

/// Updates the inner optimizer's count. False if its state of the segment is gone, because its first step was skipped.
bool tell_inner(FusedClass kind, ReplicaPart& mine, const OwnedSegment& segment, std::int64_t count) {
  auto& states = mine.inner->state();
  const auto found = states.find(segment.weights.unsafeGetTensorImpl());
  if (found == states.end()) return true;
  if (kind == FusedClass::Adam) static_cast<torch::optim::AdamParamState&>(*found->second).step(count);
  if (kind == FusedClass::AdamW) static_cast<torch::optim::AdamWParamState&>(*found->second).step(count);
  if (kind != FusedClass::Sgd || count > 0) return true;
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
       .help = "lower the learning rate or clip; set_non_finite_policy(NonFinitePolicy::SkipStep) skips such steps"});
}

}  // namespace

FusedClass fused_class_of(const OptimizerCore& core) {
  // Exactly these types: a derived class may behave differently.
  const torch::optim::Optimizer& inner = *core.replicas.front()->inner;
  if (typeid(inner) == typeid(torch::optim::SGD)) return FusedClass::Sgd;
  if (typeid(inner) == typeid(torch::optim::Adam)) return FusedClass::Adam;
  if (typeid(inner) == typeid(torch::optim::AdamW)) return FusedClass::AdamW;
  return FusedClass::None;
}

DeviceNumbers::DeviceNumbers(const OptimizerCore& core, ReplicaPart& mine) {
  const FusedClass kind = fused_class_of(core);
  const at::Device device = core.module->strategy().replica_context(mine.index).device();
  const auto bytes = at::TensorOptions(device).dtype(at::kByte);
  const auto of_size = [](std::size_t count, std::size_t each) { return static_cast<std::int64_t>(count * each); };
  std::vector<std::int64_t> before;
  for (const OwnedSegment& segment : mine.owned) before.push_back(counted_by_inner(kind, mine, segment));
  groups = at::zeros({of_size(core.groups.size(), sizeof(gpu::GroupNumbers))}, bytes);
  steps = at::zeros({of_size(mine.owned.size(), std::max(sizeof(gpu::SgdStep), sizeof(gpu::AdamStep)))}, bytes);
  counts = at::tensor(before, at::kLong).to(device, /*non_blocking=*/true);
  static_assert(sizeof(gpu::CheckResult) == 2 * sizeof(std::int64_t) && offsetof(gpu::CheckResult, bad) == 0);
  results = at::tensor({std::int64_t{-1}, std::int64_t{0}}, at::kLong).to(device, /*non_blocking=*/true);
  on_host = at::empty({2}, at::TensorOptions(at::kLong).pinned_memory(true));
}

bool DeviceNumbers::is_current(const OptimizerCore& core) const {
  if (sent.size() != core.groups.size()) return false;
  const FusedClass kind = fused_class_of(core);
  for (std::size_t g = 0; g < sent.size(); ++g) {
    if (!are_equal(sent[g], numbers_of(kind, *core.groups[g].options))) return false;
  }
  return true;
}

void DeviceNumbers::send_options(const OptimizerCore& core) {
  const FusedClass kind = fused_class_of(core);
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

void settle_counts(const OptimizerCore& core, ReplicaPart& mine) {
  if (!mine.numbers || !mine.numbers->has_counted) return;
  DeviceNumbers& numbers = *mine.numbers;
  const FusedClass kind = fused_class_of(core);
  numbers.has_counted = false;
  const at::Tensor counts = numbers.counts.cpu();
  const auto* const counted = const_data<std::int64_t>(counts);
  bool are_all_there = true;
  for (std::size_t i = 0; i < mine.owned.size(); ++i) {
    // The inner optimizer steps the others itself, for instance float64 ones.
    if (mine.owned[i].is_counted_on_device) are_all_there &= tell_inner(kind, mine, mine.owned[i], counted[i]);
  }
  settle_checks(core, mine);
  if (!are_all_there) mine.numbers.reset();
}

at::Tensor counts_on_device(const ReplicaPart& mine) { return mine.numbers ? mine.numbers->counts : at::Tensor(); }

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
  if (core.settings.not_finite != NonFinitePolicy::Raise || !mine.numbers || !mine.numbers->has_checked) return;
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
  mine.numbers->has_checked |= is_scaled || core.settings.not_finite != NonFinitePolicy::Ignore;
}

}  // namespace lockstep::detail
