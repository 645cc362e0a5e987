#include "lockstep/train/model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/state.h"

namespace lockstep::train {
namespace {

[[noreturn]] void throw_no_target() {
  throw InvalidArgument(
      errors::kStructure,
      {.what = "a batch must have an input and a target, two tensors, for the default training step",
       .where = "train::Model",
       .help = "map the dataset to a pair of tensors, or give model.set_train_step a step of your own"});
}

void require_loss(const Loss& loss) {
  if (loss) return;
  throw FailedPrecondition(errors::kBadOption,
                           {.what = "the default training step needs a loss",
                            .where = "train::Model",
                            .help = "make the model with .loss = ls::train::losses::cross_entropy(), or "
                                    "give it a step of your own: model.set_train_step"});
}

}  // namespace

Model::Model(std::shared_ptr<lockstep::detail::ModuleCore> core, MirroredOptimizerBase optimizer, ModelOptions options,
             Forward forward)
    : core_(std::move(core)),
      optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      forward_(std::move(forward)) {}

at::Tensor Model::output_of(const at::Tensor& input) const {
  if (!input.defined()) throw_no_target();
  return forward_(input);
}

void Model::default_train_step(const detail::InputAndTarget& batch, Meters& meters) {
  if (!batch.target.defined()) throw_no_target();
  require_loss(options_.loss);
  at::Tensor output, losses;
  {
    std::optional<Autocast> autocast;
    if (options_.autocast) autocast.emplace(*options_.autocast);
    output = output_of(batch.input);
    losses = detail::row_losses(options_.loss, output, batch.target);
  }
  const at::Tensor loss = average_loss(losses);
  if (options_.scaler != nullptr)
    optimizer_.minimize(loss, *options_.scaler);
  else
    optimizer_.minimize(loss);
  meters.add_mean("loss", losses.detach());
  meters.add(output.detach(), batch.target);
}

void Model::evaluation_step(const detail::InputAndTarget& batch, Meters& meters) const {
  if (!batch.target.defined()) throw_no_target();
  const at::NoGradGuard no_grad;
  std::optional<Autocast> autocast;
  if (options_.autocast) autocast.emplace(*options_.autocast);
  const at::Tensor output = output_of(batch.input);
  if (options_.loss) meters.add_mean("loss", detail::row_losses(options_.loss, output, batch.target));
  meters.add(output, batch.target);
}

at::Tensor Model::prediction_step(const detail::InputAndTarget& batch) const {
  const at::NoGradGuard no_grad;
  std::optional<Autocast> autocast;
  if (options_.autocast) autocast.emplace(*options_.autocast);
  return output_of(batch.input);
}

at::Tensor Model::join_outputs(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> here;
  for (const at::Tensor& part : parts) here.push_back(part.cpu());
  return at::cat(here);
}

void Model::require_outside_of_run(const char* operation) const {
  lockstep::detail::require_outside_of_run(operation, "call it outside: it runs the model on all replicas by itself");
}

void Model::require_interval(int validation_every) {
  if (validation_every >= 1) return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = lockstep::str("validation_every must be >= 1, got ", validation_every),
                         .where = "fit",
                         .help = "leave out .validation for a training without it"});
}

std::vector<NamedState> Model::all_parts(std::vector<NamedState> own) {
  std::vector<NamedState> parts;
  const auto state = lockstep::detail::state_of_model(core_);
  parts.emplace_back("model", *state);
  parts.back().state = state;  // it lives as long as the part
  parts.emplace_back("optimizer", optimizer_);
  if (options_.scaler != nullptr) parts.emplace_back("scaler", *options_.scaler);
  for (NamedState& part : own) parts.push_back(std::move(part));
  return parts;
}

void Model::prepare_training() {
  // A part that the program keeps in evaluation mode, such as a frozen one, stays there.
  if (!core_->replica(0)->is_training()) core_->train(true);
}

std::vector<bool> Model::enter_evaluation() const {
  std::vector<bool> modes;
  for (const auto& module : core_->replica(0)->modules()) modes.push_back(module->is_training());
  core_->train(false);
  return modes;
}

void Model::leave_evaluation(const std::vector<bool>& modes) const {
  for (std::size_t k = 0; k < core_->size(); ++k) {
    // Parents come before their children, whose modes they set too.
    const auto modules = core_->replica(k)->modules();
    for (std::size_t m = 0; m < modules.size() && m < modes.size(); ++m) modules[m]->train(modes[m]);
  }
}

void Model::throw_other_batch() const {
  throw InvalidArgument(errors::kStructure,
                        {.what = "set_train_step was given a step for another type of batch than the dataset's",
                         .where = "train::Model",
                         .help = "let the step take `const Batch&` with the dataset's value_type"});
}

}  // namespace lockstep::train
