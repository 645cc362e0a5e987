#include "lockstep/train/model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/open_window.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/sizes_of_losses.h"
#include "lockstep/nn/state.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

using detail::require_option;

void require_loss(const Loss& loss) {
  if (loss) return;
  throw FailedPrecondition(errors::kBadOption,
                           {.what = "the default training step needs a loss",
                            .where = "train::Model",
                            .help = "make the model with .loss = ls::train::losses::cross_entropy(), or "
                                    "give it a step of your own: model.set_train_step"});
}

void require_positive(const std::optional<double>& norm, const char* option) {
  const double value = norm.value_or(1);
  require_option(std::isfinite(value) && value > 0, "train::Model",
                 lockstep::str(option, " must be finite and > 0, got ", value),
                 "leave it out: gradients are then not clipped");
}

/// Throws if the network has weights of images, and they are not in channels-last memory.
void require_channels_last(const lockstep::detail::ModuleCore& network) {
  for (const auto& parameter : network.parameters()) {
    const at::Tensor& weight = parameter.leaves[0];
    if (weight.dim() != 4 || weight.is_contiguous(at::MemoryFormat::ChannelsLast)) continue;
    throw InvalidArgument(errors::kBadOption,
                          {.what = "channels_last needs a network whose weights are channels-last, too",
                           .where = "train::Model",
                           .seen = lockstep::str("parameter ", parameter.name, " of shape ", weight.sizes()),
                           .help = "make the network so: strategy.make<Net>({.channels_last = true}, arguments...)"});
  }
}

}  // namespace

Model::Model(std::shared_ptr<lockstep::detail::ModuleCore> core, MirroredOptimizerBase optimizer, ModelOptions options,
             Forward of_network)
    : core_(std::move(core)), optimizer_(std::move(optimizer)), options_(std::move(options)) {
  if (!options_.forward) options_.forward = std::move(of_network);
  require_positive(options_.clip_norm, "clip_norm");
  require_positive(options_.clip_value, "clip_value");
  const int accumulate = options_.accumulate.value_or(1);
  require_option(accumulate >= 1, "train::Model", lockstep::str("accumulate must be >= 1, got ", accumulate),
                 "1 updates after every step; 4 updates after every fourth, with the gradients of four");
  if (options_.channels_last) require_channels_last(*core_);
  if (options_.clip_norm) optimizer_.set_clip_global_norm(options_.clip_norm);
  if (options_.clip_value) optimizer_.set_clip_value(options_.clip_value);
  if (options_.accumulate) optimizer_.set_accumulate(*options_.accumulate);
}

detail::AnyValue Model::compute(const Forward::Input& input, const detail::BatchRefs& batch, at::Tensor* losses) const {
  std::optional<Autocast> autocast;
  if (options_.autocast) autocast.emplace(*options_.autocast);
  detail::AnyValue output = options_.forward(input, options_.channels_last);
  if (losses != nullptr && options_.loss)
    *losses = detail::row_losses(options_.loss, {output.ref(), input.target, batch});
  return output;
}

/// The share of this replica in the mean over the batch; in a window of `.accumulate`, in that of its batches.
at::Tensor Model::average(const at::Tensor& losses) const {
  const int batches = options_.accumulate.value_or(1);
  if (batches == 1) return average_loss(losses);
  const std::int64_t rows = std::max<std::int64_t>(lockstep::detail::count_losses(losses), 1);
  return average_loss(losses, batches * rows);
}

void Model::default_train_step(const detail::BatchRefs& batch, Meters& meters) {
  require_loss(options_.loss);
  const Forward::Input input = options_.forward.input_of(batch);
  at::Tensor losses;
  const detail::AnyValue output = compute(input, batch, &losses);
  const at::Tensor loss = average(losses);
  if (options_.scaler != nullptr)
    optimizer_.minimize(loss, *options_.scaler);
  else
    optimizer_.minimize(loss);
  meters.add_mean("loss", losses);
  meters.add(detail::Prediction{output.ref(), input.target, batch});
}

void Model::evaluation_step(const detail::BatchRefs& batch, Meters& meters) const {
  const Forward::Input input = options_.forward.input_of(batch);
  const at::NoGradGuard no_grad;
  at::Tensor losses;
  const detail::AnyValue output = compute(input, batch, &losses);
  if (losses.defined()) meters.add_mean("loss", losses);
  meters.add(detail::Prediction{output.ref(), input.target, batch});
}

detail::AnyValue Model::prediction_step(const detail::BatchRefs& batch) const {
  const at::NoGradGuard no_grad;
  return compute(options_.forward.input_of(batch), batch, nullptr);
}

void Model::require_output(const std::type_info& output) const {
  if (!options_.forward || options_.forward.result() == output) return;
  const std::string returned = lockstep::type_name(options_.forward.result());
  throw InvalidArgument(errors::kStructure,
                        {.what = lockstep::str("predict must return ", returned, ", as the model's forward does, got ",
                                               lockstep::type_name(output)),
                         .where = "predict",
                         .help = lockstep::str("write model.predict<", returned, ">(batches)")});
}

void Model::require_rows(const at::Tensor& output, std::int64_t rows) {
  if (output.defined() && output.dim() > 0 && output.size(0) == rows) return;
  throw InvalidArgument(
      errors::kShape,
      {.what = "predict needs outputs whose first dimension is the rows of the batch",
       .where = "predict",
       .seen = lockstep::str(output.defined() ? lockstep::str("shape ", output.sizes()) : "an undefined tensor",
                             " for ", counted(rows, "row")),
       .help = "give the model a .forward that transposes such tensors or leaves them out"});
}

at::Tensor detail::joined(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& part : parts) here.push_back(part.cpu());
  return at::cat(here);
}

void detail::throw_other_structure(const std::string& first, const std::string& other) {
  throw InvalidArgument(errors::kStructure,
                        {.what = "the model's forward returned different structures for different batches",
                         .where = "predict",
                         .seen = lockstep::str(first, " and ", other),
                         .help = "let it return the same number of tensors for each batch"});
}

void Model::finish_window() {
  if (!options_.accumulate || !lockstep::detail::has_open_window(*optimizer_.core())) return;
  const auto& settings = optimizer_.core()->settings;
  strategy().run([&] {
    optimizer_.reduce_gradients();
    if (options_.scaler != nullptr && !optimizer_.unscale(*options_.scaler)) return;
    if (settings.clip_global_norm) optimizer_.clip_global_norm(*settings.clip_global_norm);
    if (settings.clip_value) optimizer_.clip_value(*settings.clip_value);
    optimizer_.step();
  });
}

void Model::note_capture(const std::string& reason) {
  // On a GPU the captured step itself logs why.
  if (reason != capture_reason_ && strategy().replica_context(0).device().is_cpu())
    say_info(lockstep::str("fit runs training steps without a CUDA graph: ", reason));
  capture_reason_ = reason;
}

void Model::require_outside_of_run(const char* operation) const {
  lockstep::detail::require_outside_of_run(operation, "call it outside: it runs the model on all replicas by itself");
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

std::shared_ptr<void> Model::evaluation_mode() const {
  std::vector<bool> modes;
  for (const auto& module : core_->replica(0)->modules()) modes.push_back(module->is_training());
  core_->train(false);
  const auto put_back = [core = core_, modes](void*) {
    for (std::size_t k = 0; k < core->size(); ++k) {
      // Parents come before their children, whose modes they set too.
      const auto modules = core->replica(k)->modules();
      for (std::size_t m = 0; m < modules.size() && m < modes.size(); ++m) modules[m]->train(modes[m]);
    }
  };
  return {nullptr, put_back};
}

void Model::require_own_step_heeds_options() const {
  const auto require = [](bool holds, const char* option, const std::string& help) {
    require_option(holds, "train::Model",
                   lockstep::str("a step given to set_train_step does not use .", option, " of the model"),
                   lockstep::str("leave out .", option, ", and ", help));
  };
  require(options_.scaler == nullptr, "scaler",
          "call optimizer.minimize(loss, scaler) in the step; .parts = {{\"scaler\", scaler}} of fit saves it");
  const int accumulate = options_.accumulate.value_or(1);
  require(accumulate == 1, "accumulate",
          lockstep::str("call optimizer.set_accumulate(", accumulate, ") before fit and ls::average_loss(losses, ",
                        accumulate, " * rows) in the step"));
  require(!options_.autocast, "autocast", "put an ls::Autocast guard into the step, and for evaluation into .forward");
  require(!options_.channels_last, "channels_last",
          "call images.contiguous(at::MemoryFormat::ChannelsLast) in the step, and in .forward");
}

void Model::throw_other_batch() const {
  throw InvalidArgument(
      errors::kStructure,
      {.what = "the step given to set_train_step takes a different type of batch than the dataset has",
       .where = "train::Model",
       .help = "let the step take `const Batch&` with the dataset's value_type"});
}

}  // namespace lockstep::train
