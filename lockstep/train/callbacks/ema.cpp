#include "lockstep/train/callbacks/ema.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

constexpr const char *kAverages = "averages/", *kWeights = "weights/";

/// 16 bits are too few for an average that changes slowly.
at::TensorOptions options_of_average(const at::Tensor& weight) {
  return weight.options().dtype(weight.element_size() < 4 ? at::kFloat : weight.scalar_type()).requires_grad(false);
}

}  // namespace

/// Every Ema of the process, so that those of one model know of each other.
struct Ema::All {
  std::mutex mutex;
  std::vector<const Ema*> emas;

  static All& get() {
    static All& all = *new All;  // never destroyed: an Ema may be static
    return all;
  }
};

Ema::Ema(std::shared_ptr<lockstep::detail::ModuleCore> model, EmaOptions options)
    : model_(std::move(model)), options_(std::move(options)) {
  detail::require_option(options_.decay >= 0 && options_.decay < 1, "ema",
                         lockstep::str("decay must be >= 0 and < 1, got ", options_.decay),
                         "values near 1 average over many updates: 0.999 over about 1,000");
  detail::require_option(!options_.name.empty() && options_.name.find('/') == std::string::npos, "ema",
                         lockstep::str("name must not be empty or contain '/', got \"", options_.name, '"'),
                         "checkpoints hold the averages as name/averages/parameter");
  All& all = All::get();
  const std::lock_guard lock(all.mutex);
  all.emas.push_back(this);
}

Ema::~Ema() {
  if (is_swapped() && is_validating_) {
    try {
      swap();                          // the validation has failed
    } catch (const std::exception&) {  // so has the model
    }
  }
  All& all = All::get();
  const std::lock_guard lock(all.mutex);
  std::erase(all.emas, this);
}

/// Two that are swapped in would keep each other's averages as the model's own weights.
void Ema::require_no_other() const {
  All& all = All::get();
  const std::lock_guard lock(all.mutex);
  for (const Ema* const other : all.emas) {
    if (other == this || other->model_ != model_ || !other->is_swapped()) continue;
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = lockstep::str("ema \"", options_.name, "\" cannot swap: the model has the averages of ema \"",
                               other->options_.name, '"'),
         .where = "Ema::swap",
         .help = "for validation, set .validation = false on all but one; by hand, swap the other back first, or "
                 "destroy it to keep its averages in the model"});
  }
}

void detail::require_one_validates(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::vector<const Ema*> validating;
  for (const auto& callback : callbacks) {
    const auto* const mine = dynamic_cast<const Ema*>(callback.get());
    if (mine == nullptr || !mine->options_.validation) continue;
    for (const Ema* const other : validating) {
      if (other->model_ != mine->model_) continue;
      throw FailedPrecondition(errors::kBadOption,
                               {.what = lockstep::str("validation can see the averages of one ema of a model, got \"",
                                                      other->name(), "\" and \"", mine->name(), '"'),
                                .where = "fit",
                                .help = "set .validation = false on all but one"});
    }
    validating.push_back(mine);
  }
}

std::vector<Ema::Part> Ema::parts() const {
  std::vector<Part> parts;
  for (const auto& parameter : model_->parameters()) {
    if (parameter.leaves[0].is_floating_point()) parts.push_back({parameter.name, parameter.leaves[0].detach()});
  }
  return parts;
}

void Ema::begin() {
  const at::NoGradGuard no_grad;
  for (const Part& part : parts())
    averages_.push_back(at::empty_like(part.weight, options_of_average(part.weight)).copy_(part.weight));
}

void Ema::write(const std::vector<at::Tensor>& values) {
  model_->update([&](torch::nn::Module&) {
    const auto all = parts();
    for (std::size_t i = 0; i < all.size(); ++i) at::Tensor(all[i].weight).copy_(values[i]);
  });
}

void Ema::swap() {
  lockstep::detail::require_outside_of_run("Ema::swap");
  const at::NoGradGuard no_grad;
  if (is_swapped()) {
    write(weights_);
    weights_.clear();
    is_validating_ = false;
    return;
  }
  require_no_other();
  if (averages_.empty()) begin();
  std::vector<at::Tensor> weights;
  for (const Part& part : parts()) weights.push_back(part.weight.clone());
  write(averages_);
  weights_ = std::move(weights);
}

void Ema::follow(const Training& training) {
  const std::int64_t seen = training.updates();
  if (std::exchange(seen_, seen) == seen || is_swapped()) return;
  const auto n = static_cast<double>(++updates_);
  const double decay = options_.warm_up ? std::min(options_.decay, (1 + n) / (10 + n)) : options_.decay;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  const auto all = parts();
  for (std::size_t i = 0; i < all.size(); ++i) weights.push_back(all[i].weight.to(averages_[i].scalar_type()));
  if (!weights.empty()) at::_foreach_lerp_(averages_, weights, 1 - decay);
}

Decision Ema::train_begins(const Training& training) {
  if (is_swapped() && !training.is_resumed) swap();
  if (averages_.empty()) begin();
  seen_ = training.updates();
  return {};
}

Decision Ema::batch_ends(const Training& training) {
  follow(training);
  return {};
}

Decision Ema::validation_begins(const Training& training) {
  follow(training);  // the end of an epoch may have ended a window of accumulation
  if (!options_.validation || is_swapped()) return {};
  swap();
  is_validating_ = true;
  return {};
}

Decision Ema::validation_ends(const Training&, const Logs&) {
  if (is_validating_) swap();
  return {};
}

Decision Ema::epoch_ends(const Training& training, const Logs&) {
  if (is_validating_) swap();  // a validation without batches
  follow(training);
  return {};
}

Decision Ema::train_ends(const Training&) {
  if (options_.keep) write(averages_);
  return {};
}

std::string Ema::to_text() const {
  return nlohmann::json{{"updates", updates_}, {"is_swapped", is_swapped()}, {"is_validating", is_validating_}}.dump();
}

void Ema::from_text(const std::string& text) {
  const auto state = nlohmann::json::parse(text);
  updates_ = state.at("updates");
  is_validating_ = state.at("is_validating");
}

void Ema::capture(Snapshot& into, const std::string& name) const {
  const auto put = [&](const std::vector<at::Tensor>& values, const char* kind) {
    const auto all = parts();
    for (std::size_t i = 0; i < values.size(); ++i)
      lockstep::detail::put_shared(into, lockstep::str(name, '/', kind, all[i].name), values[i]);
  };
  put(averages_, kAverages);
  put(weights_, kWeights);
}

void Ema::check(const Snapshot& from, const std::string& name) const {
  lockstep::detail::SnapshotReader reader(from, name);
  for (const Part& part : parts()) {
    const auto like = at::empty_like(part.weight, options_of_average(part.weight));
    reader.shared(kAverages + part.name, like);
    if (reader.has_shared(kWeights + part.name)) reader.shared(kWeights + part.name, part.weight);
  }
  reader.require_all_read();
}

void Ema::restore(const Snapshot& from, const std::string& name) {
  lockstep::detail::SnapshotReader reader(from, name);
  averages_.clear();
  weights_.clear();
  for (const Part& part : parts()) {
    averages_.push_back(
        reader.shared(kAverages + part.name).to(part.weight.device(), /*non_blocking=*/false, /*copy=*/true));
    if (reader.has_shared(kWeights + part.name))
      weights_.push_back(reader.shared(kWeights + part.name).to(part.weight.device(), false, /*copy=*/true));
  }
}

}  // namespace lockstep::train
