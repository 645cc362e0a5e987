#pragma once

#include "lockstep/train/model.h"

// The parts of Model that know the type of a batch.
namespace lockstep::train {

template <class T>
std::function<void(const T&)> Model::train_step(Meters& meters) {
  if (!train_step_.has_value()) {
    return [this, &meters](const T& mine) { default_train_step(detail::input_and_target(mine), meters); };
  }
  const auto* own = std::any_cast<std::function<StepLogs(const T&)>>(&train_step_);
  if (own == nullptr) throw_other_batch();
  return [own, &meters](const T& mine) {
    for (const auto& [name, values] : (*own)(mine)) meters.add_mean(name, values);
  };
}

template <class T>
History Model::fit(const Batches<T>& batches, const FitOptions<T>& options) {
  require_outside_of_run("fit");
  require_interval(options.validation_every);
  Loop loop(strategy(), {.epochs = options.epochs,
                         .initial_epoch = options.initial_epoch,
                         .steps_per_epoch = options.steps_per_epoch,
                         .callbacks = options.callbacks,
                         .metrics = options_.metrics,
                         .optimizers = {optimizer_},
                         .schedule = options.schedule,
                         .parts = all_parts(options.parts),
                         .verbose = options.verbose,
                         .out = options.out,
                         .resume = options.resume,
                         .inexact_resume = options.inexact_resume,
                         .on_sigterm = options.on_sigterm});
  loop.require_resumable(batches);
  loop.require_resumable(options.validation);
  const auto step = train_step<T>(loop.meters());
  while (loop.next_epoch()) {
    prepare_training();
    for (const auto& batch : loop.steps(batches)) strategy().run(step, batch);
    const bool is_validated = options.validation && (loop.training().epoch + 1) % options.validation_every == 0;
    if (!is_validated) continue;
    loop.begin_validation();
    const Evaluation evaluation(*this);
    evaluate_into(loop.meters(), loop.validation_steps(options.validation));
  }
  return loop.history();
}

template <class T>
void Model::evaluate_into(Meters& meters, Steps<T>&& steps) {
  const auto step = [&](const T& mine) { evaluation_step(detail::input_and_target(mine), meters); };
  for (const auto& batch : steps) strategy().run(step, batch);
}

template <class T>
Logs Model::evaluate(const Batches<T>& batches) {
  require_outside_of_run("evaluate");
  Loop loop(strategy(), {.metrics = options_.metrics, .verbose = Verbose::Silent});
  loop.next_epoch();
  const Evaluation evaluation(*this);
  evaluate_into(loop.meters(), loop.validation_steps(batches));
  loop.next_epoch();
  Logs logs;
  for (const auto& [name, value] : loop.history().epochs.back()) logs[name.substr(4)] = value;  // without "val_"
  return logs;
}

template <class T>
at::Tensor Model::predict(const Batches<T>& batches) {
  require_outside_of_run("predict");
  Loop loop(strategy(), {.verbose = Verbose::Silent});
  loop.next_epoch();
  const Evaluation evaluation(*this);
  const auto step = [&](const T& mine) { return prediction_step(detail::input_and_target(mine)); };
  std::vector<at::Tensor> parts;
  for (const auto& batch : loop.validation_steps(batches))
    parts.push_back(strategy().gather(strategy().run(step, batch), 0));
  return join_outputs(parts);
}

template <class T>
Logs Model::train_on_batch(const T& batch) {
  require_outside_of_run("train_on_batch");
  Meters meters(strategy(), options_.metrics);
  prepare_training();
  strategy().run(train_step<T>(meters), strategy().split(batch));
  return meters.values();
}

}  // namespace lockstep::train
