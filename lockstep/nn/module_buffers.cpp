// Merging the buffers of all replicas.

#include "lockstep/nn/module_core.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_inventory.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep::detail {
namespace {

using Named = ModuleCore::NamedTensors;

/// Merges the buffers of all replicas.
Named as_one(const std::vector<Named>& named) {
  Named result;
  for (const auto& item : named[0]) {
    std::vector<at::Tensor> components;
    for (const auto& buffers : named) components.push_back(buffers[item.key()]);
    result.insert(item.key(), buffers_as_one(std::move(components)));
  }
  return result;
}

}  // namespace

at::Tensor buffers_as_one(std::vector<at::Tensor> components) {
  const at::Tensor first = components[0];
  if (!first.defined()) return first;
  const bool average = first.layout() == at::kStrided && at::isFloatingType(first.scalar_type());
  // Keep constants: a mean of equal numbers may be rounded, or overflow.
  const bool equal = average && std::all_of(components.begin(), components.end(),
                                            [&](const at::Tensor& other) { return holds_same(other, first); });
  if (!average || equal) return first.clone();
  // The sum of 16-bit numbers may overflow even if their mean does not.
  if (first.element_size() < 4) {
    for (at::Tensor& component : components) component = component.to(at::kFloat);
  }
  return ordered_reduce(ReduceOp::Mean, components).to(first.scalar_type());
}

std::vector<ModuleCore::Parameter> ModuleCore::tensors() const {
  std::vector<Parameter> all = parameters();
  std::vector<Named> buffers;
  for (std::size_t k = 0; k < size(); ++k) buffers.push_back(buffers_of(k));
  for (const auto& item : buffers[0]) {
    if (!item.value().defined() || item.value().layout() != at::kStrided) continue;
    all.push_back({item.key(), {}});
    for (const Named& of_replica : buffers) all.back().leaves.push_back(of_replica[item.key()]);
  }
  return all;
}

ModuleCore::NamedTensors ModuleCore::named_buffers() const {
  // Other replicas may be changing theirs.
  require_outside_of_run("named_buffers of a model",
                         "call model->named_buffers() inside run for the calling replica's own, or "
                         "model.named_buffers() before or after run for the merged buffers of all replicas");
  require_no_run_elsewhere(strategy(), "named_buffers of a model");
  return as_one(buffers_of_all_workers(*this));
}

ModuleCore::NamedTensors ModuleCore::named_buffers_here() const {
  require_outside_of_run("named_buffers of a model");
  std::vector<Named> named;
  for (std::size_t k = 0; k < size(); ++k) named.push_back(buffers_of(k));
  return as_one(named);
}

/// Digests of buffers that training can make different: SyncBatchNorm's stay equal.
ModuleCore::BufferDigests ModuleCore::digests_of_buffers() const {
  BufferDigests digests;
  if (alive_.expired() || !is_client_of_several_workers(*strategy_)) return digests;
  for (const auto& part : replicas_[0]->named_modules()) {
    const torch::nn::Module& module = *part.value();
    if (module.as<nn::SyncBatchNorm1dImpl>() || module.as<nn::SyncBatchNorm2dImpl>() ||
        module.as<nn::SyncBatchNorm3dImpl>())
      continue;
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      digests.emplace_back(part.key().empty() ? item.key() : lockstep::str(part.key(), '.', item.key()), 0);
      for (const at::Tensor& dense : dense_parts_of(item.value()))
        digests.back().second = 31 * digests.back().second + digest_of(dense);
    }
  }
  return digests;
}

bool ModuleCore::has_equal_buffers() const { return digests_of_buffers() == inventory_->equal_buffers; }
void ModuleCore::note_equal_buffers() { inventory_->equal_buffers = digests_of_buffers(); }

void ModuleCore::require_buffers_of_one_client() const {
  const BufferDigests now = digests_of_buffers();
  const auto [changed, before] = std::ranges::mismatch(now, inventory_->equal_buffers);
  if (changed == now.end()) return;
  throw FailedPrecondition(
      errors::kWrongContext,
      {.what = lockstep::str("a model is used outside of towers, and its buffer '", changed->first,
                             "' differs between them, as training leaves it: every worker would see its own first "
                             "tower's"),
       .help =
           "call model.synchronize_buffers() before, or use the model in call_for_each_tower; to read only the weights "
           "call model.named_parameters()"});
}

void ModuleCore::synchronize_buffers() {
  require_outside_of_run("synchronize_buffers of a model");
  const at::NoGradGuard no_grad;
  for (const auto& item : named_buffers()) {
    for (auto& module : replicas_) {
      const at::Tensor buffer = module->named_buffers()[item.key()];
      if (buffer.defined()) set_buffer(buffer, item.value());
    }
  }
  note_equal_buffers();
}

}  // namespace lockstep::detail
