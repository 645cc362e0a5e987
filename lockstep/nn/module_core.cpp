#include "lockstep/nn/module_core.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_watch.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"

namespace lockstep::detail {
namespace {

[[noreturn]] void throw_build(std::string what, std::string help, std::string seen = {}) {
  throw InvalidArgument(errors::kStructure,
                        {.what = std::move(what), .where = "make", .seen = std::move(seen), .help = std::move(help)});
}

[[noreturn]] void throw_changed(std::string seen) {
  throw FailedPrecondition(
      errors::kWrongModule,
      {.what = "the model was changed after it was made",
       .seen = std::move(seen),
       .help =
           "load weights with lockstep::load(path, model); register parameters in the module's constructor; convert "
           "with model.to() before make_optimizer"});
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
                lockstep::str("parameter '", item.key(), "' of replica ", k, " is that of replica 0"));
  }
}

/// A part that replicas share would have its buffers written by all of them at once, as batch normalization does.
void require_own_parts(const torch::nn::Module& first, const torch::nn::Module& other, std::size_t k) {
  const auto mine = first.named_modules();
  for (const auto& part : other.named_modules()) {
    const auto* const same = mine.find(part.key());
    if (same == nullptr || *same != part.value() || part.value()->named_buffers(/*recurse=*/false).is_empty()) continue;
    throw_build("the factory returned a module with the same part for several replicas",
                "build all of it inside the factory: strategy.make([] { return torch::nn::Sequential(...); })",
                lockstep::str("'", part.key(), "' of replica ", k, " is that of replica 0, and it has buffers"));
  }
}

void warn_of_replaced_weights(const std::vector<LayerMember>& members) {
  for (const LayerMember& each : members) {
    if (each.is_registered()) continue;
    log_warning(
        lockstep::str("'", each.name,
                      "' is not the tensor that was registered under this name: files hold the "
                      "registered one, which is not trained. To tie weights, leave this layer out and compute with the "
                      "other's: torch::nn::functional::linear(x, encoder->weight)"));
  }
}

}  // namespace

ModuleCore::ModuleCore(Strategy& strategy, const Factory& factory, const ModuleOptions& options)
    : strategy_(&strategy), alive_(StrategyAccess::alive(strategy)) {
  require_cross_replica(strategy, "make");
  const std::uint64_t seed = StrategyAccess::next_make_seed(strategy);
  for (int k = 0; k < strategy.num_local_replicas(); ++k) {
    // The same numbers for every replica and every topology; the caller's stream is left alone.
    ReplicaGenerators numbers = make_generators(strategy.replica_context(k).device(), seed);
    const GeneratorScope building(&numbers);
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
    module->to(strategy.replica_context(k).device());
    replicas_.push_back(std::move(module));
  }
  const at::NoGradGuard no_grad;
  if (options.channels_last) {
    for (auto& parameter : replicas_[0]->parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
  collect_parameters();
  for (std::size_t k = 1; k < replicas_.size(); ++k) require_own_parts(*replicas_[0], *replicas_[k], k);
  for (const auto& module : replicas_) members_.push_back(layer_members(*module));
  warn_of_replaced_weights(members_[0]);
  require_shareable();
  share_memory();
  take_chiefs_values(*this);
  copy_buffers();
  guard_gradients();
  is_pinned_.resize(parameters_.size());
  for (const auto& module : replicas_) parts_.push_back(module->named_modules("", /*include_self=*/false));
  watch_ = std::make_unique<ModuleWatch>(*this);
}

ModuleCore::~ModuleCore() = default;

/// Some layers write to their weights in the forward pass: replicas would do it to the same memory at the same time.
void ModuleCore::require_shareable() const {
  if (replicas_.size() == 1) return;
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

std::size_t ModuleCore::registered_in(std::size_t k) const {
  const auto of = [](const torch::nn::Module& one) {
    return one.children().size() + one.named_parameters(/*recurse=*/false).size();
  };
  std::size_t count = of(*replicas_[k]);
  for (const auto& part : parts_[k]) count += of(*part.value());
  return count;
}

bool ModuleCore::has_lost_part(std::size_t k) const {
  for (const auto& part : parts_[k]) {
    if (part.value().use_count() == 1) return true;  // held here alone
  }
  return false;
}

std::uint64_t ModuleCore::modes_of(std::size_t k) const {
  std::uint64_t mark = replicas_[k]->is_training() ? 2 : 1;
  const auto add = [&](bool flag) { mark = (mark * 2 + (flag ? 1 : 0)) * 0x9E3779B97F4A7C15U + (mark >> 32); };
  for (const auto& parameter : parameters_) add(parameter.leaves[k].requires_grad());
  for (const auto& part : parts_[k]) add(part.value()->is_training());
  for (const LayerMember& member : members_[k]) add(member.is_registered());
  return mark;
}

void ModuleCore::require_alike() const {
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    for (const auto& parameter : parameters_) {
      const bool here = parameter.leaves[k].requires_grad();
      if (here == parameter.leaves[0].requires_grad()) continue;
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what = lockstep::str("parameter '", parameter.name, "' is frozen on replica ", here ? 0 : k,
                                 " and not on replica ", here ? k : 0),
           .help = "freeze on every replica: strategy.run([&] { for (auto& p : model->part->parameters()) "
                   "p.requires_grad_(false); })"});
    }
  }
  require_same_use();
}

void ModuleCore::require_same_use() const {
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    for (std::size_t i = 0; i < members_[k].size(); ++i) {
      const bool here = members_[k][i].is_registered();
      if (here == members_[0][i].is_registered()) continue;
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what = lockstep::str("'", members_[k][i].name, "' was replaced by another tensor on replica ", here ? 0 : k,
                                 " and not on replica ", here ? k : 0),
           .help = "an assignment replaces the member of one replica's layer; write into the weights instead, for all "
                   "replicas: model.update([&](auto& net) { net.layer->weight.copy_(value); })"});
    }
  }
  for (const auto& module : replicas_) {
    if (module->is_training() == replicas_[0]->is_training()) continue;
    throw FailedPrecondition(errors::kWrongModule,
                             {.what = "replicas disagree on whether the model is training",
                              .help = "call model.train() or model.eval() on the handle, outside of run: "
                                      "model->eval() reaches one replica only"});
  }
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    for (std::size_t i = 0; i < parts_[k].size(); ++i) {
      const bool here = parts_[k][i].value()->is_training();
      if (here == parts_[0][i].value()->is_training()) continue;
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what = lockstep::str("'", parts_[k][i].key(), "' is in training mode on replica ", here ? k : 0,
                                 " and not on replica ", here ? 0 : k),
           .help = "call train or eval of a part on every replica: strategy.run([&] { model->part->eval(); })"});
    }
  }
}

Strategy& ModuleCore::strategy() const {
  if (alive_.expired()) {
    throw FailedPrecondition(errors::kMixedStrategies, {.what = "a model has outlived its strategy",
                                                        .help = "keep the strategy as long as its models"});
  }
  return *strategy_;
}

void ModuleCore::collect_parameters() {
  std::vector<Named> named;
  for (const auto& module : replicas_) named.push_back(module->named_parameters());
  const auto& first = named[0];
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    require_same_structure("parameter", first, named[k], k);
    require_own_parameters(first, named[k], k);
  }
  parameters_.clear();
  std::unordered_map<const void*, std::size_t> seen;
  for (const auto& item : first) {
    const auto [at, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), parameters_.size());
    for (std::size_t k = 0; k < replicas_.size(); ++k) {
      const at::Tensor& leaf = *named[k].find(item.key());
      if (is_new && k == 0) parameters_.push_back({item.key(), {}});
      if (is_new) {
        parameters_.back().leaves.push_back(leaf);
      } else if (!leaf.is_same(parameters_[at->second].leaves[k])) {
        throw_build("a parameter is tied in one replica and not in another",
                    "tie parameters inside the module's constructor",
                    lockstep::str("'", item.key(), "' and '", parameters_[at->second].name, "'"));
      }
    }
  }
}

void ModuleCore::share_memory() {
  const at::NoGradGuard no_grad;
  addresses_.clear();
  for (auto& parameter : parameters_) {
    for (std::size_t k = 0; k < parameter.leaves.size(); ++k) {
      at::Tensor& leaf = parameter.leaves[k];
      if (k > 0) {
        const at::Tensor& source = parameter.leaves[0];
        leaf.set_data(leaf.device() == source.device() ? source.data() : source.data().to(leaf.device()));
      }
      addresses_.push_back(leaf.const_data_ptr());
    }
  }
}

/// A factory may build modules whose buffers differ, if only because it counts its calls.
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

/// A replica that works with another replica's module would race with it and lose gradients.
void ModuleCore::guard_gradients() {
  if (replicas_.size() == 1) return;
  for (auto& parameter : parameters_) {
    for (std::size_t k = 0; k < parameter.leaves.size(); ++k) {
      at::Tensor& leaf = parameter.leaves[k];
      if (!at::isFloatingType(leaf.scalar_type()) && !at::isComplexType(leaf.scalar_type())) continue;
      const bool is_frozen = !leaf.requires_grad();
      if (is_frozen) leaf.requires_grad_(true);  // it may be unfrozen later, and only now can it be given a hook
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

void ModuleCore::update(FunctionRef<void(torch::nn::Module&)> change) {
  const ContextEntry* top = current_context();
  const bool is_inside = top != nullptr && top->replica != nullptr;
  if (is_inside && top->strategy != strategy_) require_current_strategy(strategy(), "update of a model");
  if (!is_inside) require_no_run_elsewhere(strategy(), "update of a model");
  local::Seat* seat = is_inside ? top->replica->seat() : nullptr;
  const auto act = [&] {
    for (int k = 0; seat != nullptr && k < seat->size(); ++k) {
      if (seat->payload_of(k) == this) continue;
      throw FailedPrecondition(errors::kDifferentCollective,
                               {.what = "replicas called update of different models",
                                .seen = lockstep::str("replica 0 and replica ", k),
                                .help = "update the same models in the same order on every replica"});
    }
    change_once(change);
    watch_->expect_other_weights();
  };
  if (is_inside) require_watched_untouched();
  std::exception_ptr error;
  try {
    if (seat == nullptr) {
      act();
    } else {
      // Nothing may have changed where a replica is late: that is certain only after a meeting.
      const Deadline deadline = deadline_of(strategy_->communication());
      if (!deadline.is_never())
        seat->exchange(
            "update of a model", this, [] {}, deadline);
      seat->lead("update of a model", this, act);
    }
  } catch (...) {
    error = std::current_exception();  // some weights may have changed all the same
  }
  forget_cast_weights();
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    if (is_inside && static_cast<int>(k) != top->replica->local_index()) continue;
    for (const auto& parameter : parameters_) parameter.leaves[k].unsafeGetTensorImpl()->bump_version();
  }
  if (is_inside) remember_watched();
  if (error) std::rethrow_exception(error);
  if (!is_inside) set_torn(false);  // it is how weights are set again
}

void ModuleCore::change_once(FunctionRef<void(torch::nn::Module&)> change) {
  const c10::InferenceMode mode(is_inference());
  const at::NoGradGuard no_grad;
  const auto first = buffers_of(0);
  // Versions tell too little: batch normalization, and whoever writes through data(), does not count them.
  std::vector<at::Tensor> before;
  for (const auto& item : first) before.push_back(item.value().defined() ? item.value().clone() : at::Tensor());
  change(*replicas_[0]);
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    const auto mine = buffers_of(k);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const at::Tensor& changed = first[i].value();
      if (!changed.defined() || holds_same(before[i], changed)) continue;
      const at::Tensor* const buffer = mine.find(first[i].key());
      if (buffer != nullptr && buffer->defined()) set_buffer(*buffer, changed);
    }
  }
}

bool ModuleCore::is_inference() const {
  return !parameters_.empty() && parameters_.front().leaves.front().is_inference();
}

void ModuleCore::zero_grad(bool set_to_none) {
  const ContextEntry* top = current_context();
  const bool is_inside = top != nullptr && top->replica != nullptr;
  if (is_inside) current();
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    if (is_inside && static_cast<int>(k) != top->replica->local_index()) continue;
    replicas_[k]->zero_grad(set_to_none);
  }
}

std::shared_ptr<ModuleCore> make_module_core(Strategy& strategy, const ModuleCore::Factory& factory,
                                             const ModuleOptions& options) {
  auto core = std::make_shared<ModuleCore>(strategy, factory, options);
  // One replica alone may do with its weights what it likes.
  if (core->size() > 1) StrategyAccess::watch(strategy, std::shared_ptr<const RunWatcher>(core, &core->watch()));
  return core;
}

const std::shared_ptr<torch::nn::Module>& ModuleCore::current() const {
  const ContextEntry* top = current_context();
  if (top == nullptr || top->replica == nullptr) return replicas_[0];
  if (top->strategy != strategy_) require_current_strategy(strategy(), "model");
  const auto k = static_cast<std::size_t>(top->replica->local_index());
  // torch::load gives every parameter new memory: one look is enough to notice it before this replica computes with other
  // weights than the rest.
  if (!parameters_.empty() && has_moved(0, k)) require_unchanged();
  watch_->note_use(k);
  return replicas_[k];
}

void ModuleCore::expect_forward() const {
  const ContextEntry* top = current_context();
  if (replicas_.size() > 1 && (top == nullptr || top->replica == nullptr)) watch_->note_use_outside();
}

void ModuleCore::train(bool on) {
  require_outside_of_run("train or eval of a model");
  for (auto& module : replicas_) module->train(on);
}

void ModuleCore::to(at::ScalarType dtype) {
  require_outside_of_run("to of a model");
  if (std::ranges::find(is_pinned_, true) != is_pinned_.end()) {
    throw FailedPrecondition(errors::kWrongModule, {.what = "the parameters of this model belong to an optimizer",
                                                    .where = "to",
                                                    .help = "convert the model before make_optimizer"});
  }
  for (auto& module : replicas_) module->to(dtype);
  share_memory();
  watch_->expect_other_weights();
}

void ModuleCore::apply(const std::function<void(torch::nn::Module&)>& f) {
  require_outside_of_run("apply of a model");
  watch_->expect_other_weights();
  // Parameters are shared: what f does to them counts once, as replica 0 has it, random numbers included. The other
  // replicas' modules are visited for what is their own.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const auto state_of = [&] {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  };
  const auto set_state = [&](const at::Tensor& state) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  };
  const at::Tensor before = state_of();
  replicas_[0]->apply(f);
  if (replicas_.size() == 1) return;
  const at::Tensor after = state_of();
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : parameters_) values.push_back(parameter.leaves[0].detach().clone());
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    set_state(before);
    replicas_[k]->apply(f);
  }
  set_state(after);
  const at::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].leaves[0].data().copy_(values[p]);
}

ModuleCore::NamedTensors ModuleCore::named_parameters() const { return current()->named_parameters(); }
ModuleCore::NamedTensors ModuleCore::parameters_of(std::size_t k) const { return replicas_[k]->named_parameters(); }
ModuleCore::NamedTensors ModuleCore::buffers_of(std::size_t k) const { return replicas_[k]->named_buffers(); }

namespace {

/// Of all replicas: floating ones averaged, others, and sparse ones, as the first has them.
Named as_one(const std::vector<Named>& named) {
  Named result;
  for (const auto& item : named[0]) {
    std::vector<at::Tensor> components;
    for (const auto& buffers : named) components.push_back(buffers[item.key()]);
    const bool average = item.value().defined() && item.value().layout() == at::kStrided &&
                         at::isFloatingType(item.value().scalar_type());
    // Constants stay what they are: a mean of equal numbers may be rounded, or overflow.
    const bool equal = average && std::all_of(components.begin(), components.end(), [&](const at::Tensor& other) {
                         return holds_same(other, components[0]);
                       });
    if (!item.value().defined()) {
      result.insert(item.key(), item.value());
      continue;
    }
    if (!average || equal) {
      result.insert(item.key(), item.value().clone());
      continue;
    }
    // The sum of 16-bit numbers may be more than their type holds where their mean is not.
    if (item.value().element_size() < 4) {
      for (at::Tensor& component : components) component = component.to(at::kFloat);
    }
    result.insert(item.key(), ordered_reduce(ReduceOp::Mean, components).to(item.value().scalar_type()));
  }
  return result;
}

}  // namespace

ModuleCore::NamedTensors ModuleCore::named_buffers() const {
  // Other replicas may be changing theirs.
  require_outside_of_run("named_buffers of a model",
                         "call model->named_buffers() inside run for the calling replica's own, or "
                         "model.named_buffers() before or after run for those of all replicas as one");
  require_no_run_elsewhere(strategy(), "named_buffers of a model");
  return as_one(buffers_of_all_workers(*this));
}

ModuleCore::NamedTensors ModuleCore::named_buffers_here() const {
  require_outside_of_run("named_buffers of a model");
  std::vector<Named> named;
  for (std::size_t k = 0; k < size(); ++k) named.push_back(buffers_of(k));
  return as_one(named);
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
}

void ModuleCore::throw_moved(const std::string& name) {
  throw_changed(lockstep::str("parameter '", name, "' has moved to other memory"));
}

void ModuleCore::require_unchanged() const {
  std::size_t next = 0;
  for (const auto& parameter : parameters_) {
    for (std::size_t k = 0; k < parameter.leaves.size(); ++k) {
      const at::Tensor& leaf = parameter.leaves[k];
      const at::Device expected = strategy().replica_context(static_cast<int>(k)).device();
      if (leaf.device() != expected) {
        throw FailedPrecondition(errors::kDevice,
                                 {.what = lockstep::str("parameter '", parameter.name, "' is on ", leaf.device(),
                                                        ", but replica ", k, " is on ", expected),
                                  .help = "leave it where make put it"});
      }
      if (leaf.const_data_ptr() != addresses_[next++]) throw_moved(parameter.name);
    }
  }
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    std::unordered_set<const void*> made;
    for (const auto& parameter : parameters_) made.insert(parameter.leaves[k].unsafeGetTensorImpl());
    std::unordered_set<const void*> seen;
    for (const auto& item : replicas_[k]->named_parameters()) {
      if (made.count(item.value().unsafeGetTensorImpl()) == 0)
        throw_changed(lockstep::str("parameter '", item.key(), "' of replica ", k, " is not the one that make built"));
      seen.insert(item.value().unsafeGetTensorImpl());
    }
    if (seen.size() != made.size())
      throw_changed(lockstep::str("replica ", k, " had ", made.size(), " parameters and now has ", seen.size()));
  }
}

}  // namespace lockstep::detail
