// Checks that a model still is as `make` built it, and the same on all replicas.

#include "lockstep/nn/module_core.h"

#include <torch/nn/module.h>

#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/module_inventory.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

[[noreturn]] void throw_changed(std::string seen) {
  throw FailedPrecondition(
      errors::kWrongModule,
      {.what = "the model was changed after it was made",
       .seen = std::move(seen),
       .help =
           "load weights with lockstep::load(path, model); register parameters in the module's constructor; convert "
           "with model.to() before make_optimizer"});
}

}  // namespace

std::size_t ModuleCore::registered_in(std::size_t k) const {
  const auto of = [](const torch::nn::Module& one) {
    return one.children().size() + one.named_parameters(/*recurse=*/false).size();
  };
  std::size_t count = of(*replicas_[k]);
  for (const auto& part : inventory_->parts[k]) count += of(*part.value());
  return count;
}

bool ModuleCore::has_lost_part(std::size_t k) const {
  for (const auto& part : inventory_->parts[k]) {
    if (part.value().use_count() == 1) return true;  // held only here
  }
  return false;
}

std::uint64_t ModuleCore::modes_of(std::size_t k) const {
  std::uint64_t mark = replicas_[k]->is_training() ? 2 : 1;
  const auto add = [&](bool flag) { mark = (mark * 2 + (flag ? 1 : 0)) * 0x9E3779B97F4A7C15U + (mark >> 32); };
  for (const auto& parameter : parameters()) add(parameter.leaves[k].requires_grad());
  for (const auto& part : inventory_->parts[k]) add(part.value()->is_training());
  for (const LayerMember& member : inventory_->members[k]) add(member.is_registered());
  return mark;
}

void ModuleCore::require_alike() const {
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    for (const auto& parameter : parameters()) {
      const bool here = parameter.leaves[k].requires_grad();
      if (here == parameter.leaves[0].requires_grad()) continue;
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what =
               lockstep::str("parameter '", parameter.name, "' is frozen on ", replica_name(strategy(), here ? 0 : k),
                             " and not on ", replica_name(strategy(), here ? k : 0)),
           .help = "freeze on every replica: strategy.run([&] { for (auto& p : model->part->parameters()) "
                   "p.requires_grad_(false); })"});
    }
  }
  require_same_use();
}

void ModuleCore::require_same_use() const {
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    for (std::size_t i = 0; i < inventory_->members[k].size(); ++i) {
      const bool here = inventory_->members[k][i].is_registered();
      if (here == inventory_->members[0][i].is_registered()) continue;
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what = lockstep::str("'", inventory_->members[k][i].name, "' was replaced by another tensor on ",
                                 replica_name(strategy(), here ? 0 : k), " and not on ",
                                 replica_name(strategy(), here ? k : 0)),
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
    for (std::size_t i = 0; i < inventory_->parts[k].size(); ++i) {
      const bool here = inventory_->parts[k][i].value()->is_training();
      if (here == inventory_->parts[0][i].value()->is_training()) continue;
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what = lockstep::str("'", inventory_->parts[k][i].key(), "' is in training mode on ",
                                 replica_name(strategy(), here ? k : 0), " and not on ",
                                 replica_name(strategy(), here ? 0 : k)),
           .help = "call train or eval of a part on every replica: strategy.run([&] { model->part->eval(); })"});
    }
  }
}

void ModuleCore::throw_moved(const std::string& name) {
  throw_changed(lockstep::str("parameter '", name, "' has moved to other memory"));
}

void ModuleCore::require_unchanged() const {
  for (const auto& parameter : parameters()) {
    for (std::size_t k = 0; k < parameter.leaves.size(); ++k) {
      const at::Tensor& leaf = parameter.leaves[k];
      const at::Device expected = strategy().replica_context(static_cast<int>(k)).device();
      if (leaf.device() != expected) {
        throw FailedPrecondition(
            errors::kDevice, {.what = lockstep::str("parameter '", parameter.name, "' is on ", leaf.device(), ", but ",
                                                    replica_name(strategy(), k), " is on ", expected),
                              .help = "leave it where make put it"});
      }
      if (parameter.has_moved(k)) throw_moved(parameter.name);
    }
  }
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    std::unordered_set<const void*> made;
    for (const auto& parameter : parameters()) made.insert(parameter.leaves[k].unsafeGetTensorImpl());
    std::unordered_set<const void*> seen;
    for (const auto& item : replicas_[k]->named_parameters()) {
      if (made.count(item.value().unsafeGetTensorImpl()) == 0)
        throw_changed(lockstep::str("parameter '", item.key(), "' of ", replica_name(strategy(), k),
                                    " is not the one that make built"));
      seen.insert(item.value().unsafeGetTensorImpl());
    }
    if (seen.size() != made.size())
      throw_changed(
          lockstep::str(replica_name(strategy(), k), " had ", made.size(), " parameters and now has ", seen.size()));
  }
}

}  // namespace lockstep::detail
