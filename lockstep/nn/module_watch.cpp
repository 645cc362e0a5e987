#include "lockstep/nn/module_watch.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/strategy/replica_name.h"

namespace lockstep::detail {
namespace {

ModuleWatch::Look look_at(const at::Tensor& tensor, bool at_element) {
  ModuleWatch::Look look;
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) look.version = counter.current_version();  // tensors made in inference mode have none
  if (!at_element || !tensor.is_cpu() || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) return look;
  const std::size_t width = tensor.element_size();
  const auto* const start = static_cast<const char*>(tensor.const_data_ptr());
  std::memcpy(&look.element, start + static_cast<std::size_t>(tensor.numel() / 2) * width,
              std::min(width, sizeof look.element));
  return look;
}

}  // namespace

ModuleWatch::ModuleWatch(const ModuleCore& model)
    : model_(model),
      seen_(model.parameters().size() * model.size()),
      used_(model.size()),
      registered_(model.registered_in(0)) {
  if (model.size() == 1) return;
  remember_copies();
  const auto last = model.buffers_of(model.size() - 1);
  for (const auto& item : model.buffers_of(0)) {
    const at::Tensor* const other = last.find(item.key());
    if (item.value().defined() && other != nullptr && other->defined() && !other->is_same(item.value()))
      buffers_.push_back({item.key(), item.value(), *other});
  }
  remember_buffers();
}

bool ModuleWatch::has_new_version(std::size_t p, std::size_t k) const {
  return seen_[k * model_.parameters().size() + p].version != look_at(model_.parameters()[p].leaves[k], false).version;
}

/// With a single copy, every leaf's change is a change for all.
void ModuleWatch::remember_copies() const {
  for (std::size_t k = 0; k < model_.size() && model_.copies().count() > 1; ++k) remember(k);
}

void ModuleWatch::prepare() const {
  const WeightCopies& copies = model_.copies();
  if (copies.count() == 1) return;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    bool is_first_changed = false;
    std::size_t other = 0;
    for (std::size_t k = 0; k < model_.size(); ++k) {
      if (!has_new_version(p, k)) continue;
      if (copies.of_replica[k] == 0) is_first_changed = true;
      if (copies.of_replica[k] != 0) other = k;
    }
    if (is_first_changed) {
      model_.spread_weights(p);
    } else if (other > 0) {
      throw FailedPrecondition(
          errors::kWrongModule,
          {.what = lockstep::str("parameter '", model_.parameters()[p].name, "' was changed outside of run only on ",
                                 replica_name(model_.strategy(), other), ", which has its own copy of the weights"),
           .help = "change weights with model.update(f), which reaches all copies; call it now to set them again"});
    }
  }
}

void ModuleWatch::begin(std::size_t k) const {
  used_[k] = false;
  if (k == 0) {
    warn_of_other_optimizers();
    warn_of_changed_buffers();
  }
  remember(k);
}

void ModuleWatch::remember(std::size_t k) const {
  const auto& parameters = model_.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    seen_[k * parameters.size() + p] = look_at(parameters[p].leaves[k], k == 0);
}

void ModuleWatch::require_untouched(std::size_t k) const {
  const auto& parameters = model_.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const bool has_moved = parameters[p].has_moved(k);
    if (used_[k] && has_moved) ModuleCore::throw_moved(parameters[p].name);
    const Look before = seen_[k * parameters.size() + p];
    const Look now = look_at(parameters[p].leaves[k], k == 0);
    if (now.version == before.version && (now.element == before.element || has_moved)) continue;
    throw FailedPrecondition(
        errors::kWrongModule,
        {.what = lockstep::str("parameter '", parameters[p].name, "' was changed inside run"),
         .where = lockstep::str("on ", replica_name(k)),
         .seen =
             lockstep::str(model_.size(), " replicas share their weights: a change that each of them makes is made ",
                           model_.size(), " times. The weights stay changed"),
         .help = "train with strategy.make_optimizer<...>(model, options) and minimize(loss); change weights yourself "
                 "with model.update(f), which does it once"});
  }
}

void ModuleWatch::end() const {
  suspect_other_optimizers();
  remember_buffers();
  // Here and not after each step: a teacher is used before its student's step.
  if (std::ranges::find(used_, true) == used_.end()) return;
  model_.require_same_use();
  if (!model_.replica(0)->is_training()) require_same_parts();
  warn_of_different_buffers();
  warn_of_frozen_on_some();
}

/// In training the optimizer checks the parts.
void ModuleWatch::require_same_parts() const {
  const bool may_count = evaluations_ < 100 || evaluations_ % 16 == 0;  // it costs some microseconds
  ++evaluations_;
  if (!model_.has_lost_part(0) && !(may_count && model_.registered_in(0) != registered_)) return;
  model_.require_unchanged();
  registered_ = model_.registered_in(0);
}

void ModuleWatch::warn_of_frozen_on_some() const {
  if (has_warned_of_frozen_) return;
  for (const auto& parameter : model_.parameters()) {
    const bool is_first_frozen = !parameter.leaves.front().requires_grad();
    if (is_first_frozen == !parameter.leaves.back().requires_grad()) continue;
    has_warned_of_frozen_ = true;
    return say_warning(lockstep::str(
        "parameter '", parameter.name, "' is frozen on ", is_first_frozen ? "replica 0" : "other replicas",
        " and not on ", is_first_frozen ? "others" : "replica 0",
        ", which compute its gradients. Freeze on every replica: strategy.run([&] { for (auto& p : "
        "model->parameters()) p.requires_grad_(false); })"));
  }
}

/// A LibTorch optimizer on model.parameters() holds replica 0's leaves from one step to the next, unlike anything done
/// with other replicas' leaves, and it needs gradients left behind by a run. Weights set by hand
/// (`named_parameters()["w"].copy_(...)`) have no other holder. A program that keeps a list of the parameters and
/// writes to it by itself, between runs that leave gradients behind, looks the same. Not detected: an optimizer that is
/// created for every step, or one on parameters that a Lockstep optimizer has too.
bool ModuleWatch::may_have_other_optimizer(std::size_t p) const {
  const auto& leaves = model_.parameters()[p].leaves;
  return !model_.is_pinned(p) && leaves.back().grad().defined() &&
         leaves.front().use_count() > leaves.back().use_count();
}

/// On replica 0, since it was recorded.
bool ModuleWatch::has_changed(std::size_t p) const {
  return seen_[p] != look_at(model_.parameters()[p].leaves[0], true);
}

void ModuleWatch::suspect_other_optimizers() const {
  suspects_.clear();
  if (has_warned_of_other_optimizers_) return;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    if (may_have_other_optimizer(p)) suspects_.push_back(p);
  }
}

void ModuleWatch::warn_of_other_optimizers() const {
  for (const std::size_t p : suspects_) {
    if (!has_changed(p)) continue;
    warn_of(p, "after a run that has left gradients on every replica");
    break;
  }
  suspects_.clear();  // a failed run has no end
}

void ModuleWatch::remember_buffers() const {
  buffer_versions_.clear();
  for (const Buffer& buffer : buffers_) {
    if (has_warned_of_buffers_) return;
    buffer_versions_.push_back(look_at(buffer.first, false).version);
    buffer_versions_.push_back(look_at(buffer.last, false).version);
  }
}

void ModuleWatch::warn_of_changed_buffers() const {
  for (std::size_t b = 0; 2 * b < buffer_versions_.size() && !has_warned_of_buffers_; ++b) {
    const bool is_first_changed = look_at(buffers_[b].first, false).version != buffer_versions_[2 * b];
    const bool is_last_changed = look_at(buffers_[b].last, false).version != buffer_versions_[2 * b + 1];
    if (!is_first_changed || is_last_changed) continue;
    has_warned_of_buffers_ = true;
    say_warning(lockstep::str("buffer '", buffers_[b].name,
                              "' was changed outside of run only on replica 0, and every replica has its own. Set it "
                              "with model.update(f), which reaches all of them; use the model inside run"));
  }
  buffer_versions_.clear();
}

/// In an evaluation each replica uses its own batch normalization statistics, and a saved model has yet others.
void ModuleWatch::warn_of_different_buffers() const {
  if (model_.replica(0)->is_training()) {  // batch normalization does not change versions
    may_differ_ = true;
    return;
  }
  if (!std::exchange(may_differ_, false) || has_warned_of_evaluation_) return;
  for (const Buffer& buffer : buffers_) {
    if (!at::isFloatingType(buffer.first.scalar_type()) || holds_same(buffer.first, buffer.last)) continue;
    has_warned_of_evaluation_ = true;
    return say_warning(lockstep::str(
        "the model was used in eval mode, and buffer '", buffer.name,
        "' differs between replicas, as training leaves it: results depend on the replica that computes them, and differ "
        "from those of the saved model. Call model.synchronize_buffers() before model.eval()"));
  }
}

void ModuleWatch::note_use_outside() const {
  // Batch normalization does not change versions. Changes by the program are detected when the next run begins.
  const auto statistics =
      std::ranges::find_if(buffers_, [](const Buffer& buffer) { return buffer.name.ends_with("running_mean"); });
  if (model_.replica(0)->is_training() && statistics != buffers_.end() &&
      !std::exchange(has_warned_of_buffers_, true)) {
    say_warning(
        lockstep::str("the model was used outside of run in train mode: buffers such as '", statistics->name,
                      "' change only on replica 0, and every replica has its own. Use the model inside run, or call "
                      "model.eval() before"));
  }
  warn_of_different_buffers();
}

void ModuleWatch::end_of_merge() const {
  const auto& parameters = model_.parameters();
  for (std::size_t p = 0; p < parameters.size() && model_.copies().count() > 1; ++p) {
    if (has_changed(p)) model_.spread_weights(p);
  }
  for (std::size_t p = 0; p < parameters.size() && !has_warned_of_other_optimizers_; ++p) {
    if (!has_changed(p) || !may_have_other_optimizer(p)) continue;
    // If a program reduced the gradients itself, one step with them is intended.
    const at::Tensor& first = parameters[p].leaves.front().grad();
    const at::Tensor& last = parameters[p].leaves.back().grad();
    const bool is_reduced = first.defined() && first.layout() == at::kStrided && last.layout() == at::kStrided &&
                            look_at(first, true).element == look_at(last, true).element;
    if (!is_reduced) warn_of(p, "in a merge function, where replicas have gradients of their own");
  }
}

void ModuleWatch::warn_of(std::size_t p, const char* when) const {
  has_warned_of_other_optimizers_ = true;
  say_warning(lockstep::str(
      "parameter '", model_.parameters()[p].name, "' was changed ", when,
      ". An optimizer of LibTorch on model.parameters() sees only replica 0's. Train with "
      "strategy.make_optimizer<...>(model, options) and minimize(loss) inside run; change weights yourself with "
      "model.update(f)"));
}

}  // namespace lockstep::detail
