// How `make` builds a model: one module per replica with the same structure and weights in shared memory.

#include "lockstep/nn/models_made.h"
#include "lockstep/nn/module_core.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_inventory.h"
#include "lockstep/nn/module_watch.h"
#include "lockstep/nn/weights_apart.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

[[noreturn]] void throw_build(std::string what, std::string help, std::string seen = {}) {
  throw InvalidArgument(errors::kStructure,
                        {.what = std::move(what), .where = "make", .seen = std::move(seen), .help = std::move(help)});
}

using Named = ModuleCore::NamedTensors;

/// `kind`: "parameter" or "buffer".
void require_same_structure(const char* kind, const Named& first, const Named& other, std::size_t k) {
  if (first.size() != other.size()) {
    throw_build("the factory built modules of different structure", "build the same module every time it is called",
                lockstep::str("replica 0 has ", counted(static_cast<std::int64_t>(first.size()), kind), ", replica ", k,
                              " has ", other.size()));
  }
  for (const auto& item : first) {
    const at::Tensor* theirs = other.find(item.key());
    if (theirs == nullptr || theirs->defined() != item.value().defined() ||
        (theirs->defined() &&
         (theirs->sizes() != item.value().sizes() || theirs->scalar_type() != item.value().scalar_type() ||
          theirs->layout() != item.value().layout()))) {
      throw_build("the factory built modules of different structure", "build the same module every time it is called",
                  lockstep::str(kind, " '", item.key(), "' of replica 0 has no equal in replica ", k));
    }
  }
}

void require_own_parameters(const Named& first, const Named& other, std::size_t k) {
  for (const auto& item : first) {
    if (!other[item.key()].is_same(item.value())) continue;
    throw_build("the factory returned the same module for several replicas",
                "build all of it inside the factory: strategy.make([] { return torch::nn::Sequential(...); })",
                lockstep::str("parameter '", item.key(), "' of replica ", k, " is replica 0's"));
  }
}

/// A part shared by replicas would have its buffers written by all of them at once, as batch normalization does.
void require_own_parts(const torch::nn::Module& first, const torch::nn::Module& other, std::size_t k) {
  const auto mine = first.named_modules();
  for (const auto& part : other.named_modules()) {
    const auto* const same = mine.find(part.key());
    if (same == nullptr || *same != part.value() || part.value()->named_buffers(/*recurse=*/false).is_empty()) continue;
    throw_build("the factory returned a module with the same part for several replicas",
                "build all of it inside the factory: strategy.make([] { return torch::nn::Sequential(...); })",
                lockstep::str("'", part.key(), "' of replica ", k, " is replica 0's, and it has buffers"));
  }
}

void warn_of_replaced_weights(const std::vector<LayerMember>& members) {
  for (const LayerMember& each : members) {
    if (each.is_registered()) continue;
    say_warning(
        lockstep::str("'", each.name,
                      "' is not the tensor that was registered under this name: files hold the "
                      "registered one, which is not trained. To tie weights, leave this layer out and compute with the "
                      "other's: torch::nn::functional::linear(x, encoder->weight)"));
  }
}

/// One module per replica, on its device. Draws from LibTorch's generators, and leaves them, as building one module in
/// a plain program would.
std::vector<std::shared_ptr<torch::nn::Module>> build_modules(const Strategy& strategy,
                                                              const ModuleCore::Factory& factory,
                                                              const std::vector<at::Device>& devices) {
  const GeneratorScope callers(nullptr);
  const ConstructionRng rng(strategy, devices);
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const at::Device& device : devices) {
    rng.begin_build(/*is_first=*/modules.empty());
    auto module = factory();
    if (!module)
      throw_build("the factory returned no module", "return a std::shared_ptr or a module holder that is not empty");
    for (const auto& item : module->named_parameters()) {
      if (!item.value().is_meta()) continue;
      throw InvalidArgument(
          errors::kDevice,
          {.what = lockstep::str("parameter '", item.key(), "' is on the meta device: it has no values to train"),
           .where = "make",
           .help = "build the module on a device that has memory; make moves it to its replica's"});
    }
    module->to(device);
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace

ModuleCore::ModuleCore(Strategy& strategy, const Factory& factory, const ModuleOptions& options)
    : strategy_(&strategy), alive_(StrategyAccess::alive(strategy)), inventory_(std::make_unique<Inventory>()) {
  require_cross_replica(strategy, "make");
  note_model(strategy);
  std::vector<at::Device> devices;
  for (int k = 0; k < strategy.num_local_replicas(); ++k) devices.push_back(strategy.replica_context(k).device());
  const ApartOptions apart = weights_apart();
  copies_ = plan_weight_copies(devices, apart.weights);
  copies_.in_reach = apart.in_reach && gpu::reach_each_other(devices);
  copies_.is_mixed |= apart.weights && apart.mixed;
  replicas_ = build_modules(strategy, factory, devices);
  const at::NoGradGuard no_grad;
  if (options.channels_last) {
    for (auto& parameter : replicas_[0]->parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
  collect_parameters();
  for (std::size_t k = 1; k < replicas_.size(); ++k) require_own_parts(*replicas_[0], *replicas_[k], k);
  for (const auto& module : replicas_) inventory_->members.push_back(layer_members(*module));
  warn_of_replaced_weights(inventory_->members[0]);
  require_shareable();
  share_memory();
  take_chiefs_values(*this);
  spread_all_weights();
  copy_buffers();
  guard_gradients();
  inventory_->is_pinned.resize(inventory_->parameters.size());
  for (const auto& module : replicas_) inventory_->parts.push_back(module->named_modules("", /*include_self=*/false));
  note_equal_buffers();
  watch_ = std::make_unique<ModuleWatch>(*this);
}

ModuleCore::~ModuleCore() = default;

/// Some layers write to their weights in the forward pass: replicas would write to the same memory at the same time.
void ModuleCore::require_shareable() const {
  if (replicas_.size() == 1) return;
  for (const Parameter& parameter : inventory_->parameters) {
    const at::Tensor& leaf = parameter.leaves[0];
    const bool may_have_gaps = leaf.is_cpu() && !copies_.is_mixed;
    if (copies_.count() == 1 || may_have_gaps || leaf.is_non_overlapping_and_dense()) continue;
    throw_build(lockstep::str("parameter '", parameter.name, "' has gaps or shared elements in its memory"),
                "register a tensor with memory of its own: tensor.clone()");
  }
  // Changes of such weights are not counted, so other copies could not follow.
  if (copies_.count() > 1 && is_inference()) {
    throw InvalidArgument(
        errors::kWrongModule,
        {.what = "a model for several devices cannot be made in inference mode",
         .where = "make",
         .help = "call strategy.make outside of any c10::InferenceMode, and use the model inside it"});
  }
  for (const auto& part : replicas_[0]->named_modules()) {
    const auto* embedding = part.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = part.value()->as<torch::nn::EmbeddingBagImpl>();
    if (!(embedding && embedding->options.max_norm()) && !(bag && bag->options.max_norm())) continue;
    throw InvalidArgument(
        errors::kWrongModule,
        {.what = lockstep::str("'", part.key(),
                               "' shortens its rows to max_norm while it looks them up, and replicas share the rows"),
         .where = "make",
         .help = "leave max_norm out, and shorten the rows between two runs or inside the loss"});
  }
}

void ModuleCore::collect_parameters() {
  std::vector<Named> named;
  for (const auto& module : replicas_) named.push_back(module->named_parameters());
  const auto& first = named[0];
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    require_same_structure("parameter", first, named[k], k);
    require_own_parameters(first, named[k], k);
  }
  inventory_->parameters.clear();
  std::unordered_map<const void*, std::size_t> seen;
  for (const auto& item : first) {
    const auto [at, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), inventory_->parameters.size());
    for (std::size_t k = 0; k < replicas_.size(); ++k) {
      const at::Tensor& leaf = *named[k].find(item.key());
      if (is_new && k == 0) inventory_->parameters.push_back({item.key(), {}});
      if (is_new) {
        inventory_->parameters.back().leaves.push_back(leaf);
      } else if (!leaf.is_same(inventory_->parameters[at->second].leaves[k])) {
        throw_build("a parameter is tied in one replica and not in another",
                    "tie parameters inside the module's constructor",
                    lockstep::str("'", item.key(), "' and '", inventory_->parameters[at->second].name, "'"));
      }
    }
  }
}

void ModuleCore::share_memory() {
  const at::NoGradGuard no_grad;
  for (auto& parameter : inventory_->parameters) {
    parameter.addresses.clear();
    for (std::size_t k = 0; k < parameter.leaves.size(); ++k) {
      at::Tensor& leaf = parameter.leaves[k];
      const std::size_t first = copies_.first[copies_.of_replica[k]];
      if (k > first) leaf.set_data(parameter.leaves[first].data());
      if (k == first && k > 0) {
        const at::Tensor values = parameter.leaves[0].data();
        // If it already has separate memory, it stays there: another model may have this leaf too.
        const bool is_apart =
            leaf.strides() == values.strides() && leaf.is_non_overlapping_and_dense() &&
            std::none_of(parameter.leaves.begin(), parameter.leaves.begin() + static_cast<std::ptrdiff_t>(k),
                         [&](const at::Tensor& before) { return before.is_alias_of(leaf); });
        if (is_apart)
          leaf.data().copy_(values);
        else
          leaf.set_data(at::empty_like(values, values.options().device(leaf.device())).copy_(values));
      }
      parameter.addresses.push_back(leaf.const_data_ptr());
    }
  }
}

void ModuleCore::spread_weights(std::size_t p) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& leaves = inventory_->parameters[p].leaves;
  for (std::size_t c = 1; c < copies_.count(); ++c) leaves[copies_.first[c]].data().copy_(leaves[0].data());
}

void ModuleCore::spread_all_weights() const {
  if (copies_.count() == 1) return;
  for (std::size_t p = 0; p < inventory_->parameters.size(); ++p) spread_weights(p);
}

/// A factory may build modules with different buffers, if only because it counts its calls.
void ModuleCore::copy_buffers() {
  const at::NoGradGuard no_grad;
  const auto first = replicas_[0]->named_buffers();
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    const auto mine = replicas_[k]->named_buffers();
    require_same_structure("buffer", first, mine, k);
    for (const auto& item : mine) {
      if (item.value().defined()) set_buffer(item.value(), first[item.key()]);
    }
  }
}

/// A replica that uses another replica's module would race with it and lose gradients.
void ModuleCore::guard_gradients() {
  if (replicas_.size() == 1) return;
  for (auto& parameter : inventory_->parameters) {
    for (std::size_t k = 0; k < parameter.leaves.size(); ++k) {
      at::Tensor& leaf = parameter.leaves[k];
      if (!at::isFloatingType(leaf.scalar_type()) && !at::isComplexType(leaf.scalar_type())) continue;
      const bool is_frozen = !leaf.requires_grad();
      if (is_frozen) leaf.requires_grad_(true);  // it may be unfrozen later, and only now can it get a hook
      leaf.register_hook([k, name = parameter.name](const at::Tensor&) {
        const int current = current_component();
        if (current < 0 || static_cast<std::size_t>(current) == k) return;
        throw FailedPrecondition(
            errors::kWrongModule,
            {.what = lockstep::str("a gradient of replica ", k, "'s '", name, "' was computed on replica ", current),
             .help = "take `model->` inside run: it is the calling replica's module"});
      });
      if (is_frozen) leaf.requires_grad_(false);
    }
  }
}

std::shared_ptr<ModuleCore> make_module_core(Strategy& strategy, const ModuleCore::Factory& factory,
                                             const ModuleOptions& options) {
  auto core = std::make_shared<ModuleCore>(strategy, factory, options);
  // A single replica may change its weights freely.
  if (core->size() > 1) StrategyAccess::runs(strategy).watch(std::shared_ptr<const RunWatcher>(core, &core->watch()));
  return core;
}

}  // namespace lockstep::detail
