#pragma once

#include "lockstep/train/callbacks/ema.h"
#include "lockstep/train/model.h"
#include "lockstep/train/require_option.h"

// The parts of Model that know the type of a batch.
namespace lockstep::train {

namespace detail {

/// The tensors of the same place in all outputs as one, on the CPU.
LOCKSTEP_EXPORT at::Tensor joined(const std::vector<at::Tensor>& parts);
[[noreturn]] LOCKSTEP_EXPORT void throw_other_structure(const std::string& first, const std::string& other);

template <class Output>
Output join_rows(const std::vector<Output>& outputs) {
  std::vector<std::vector<at::Tensor>> parts;  // of each place
  for (const Output& output : outputs) {
    if (!same_structure(output, outputs[0]))
      throw_other_structure(structure_string(outputs[0]), structure_string(output));
    std::size_t place = 0;
    for_each_leaf(output, [&](const at::Tensor& tensor) {
      if (parts.size() <= place) parts.emplace_back();
      parts[place++].push_back(tensor);
    });
  }
  std::size_t next = 0;
  return map_structure([&](const at::Tensor&) { return joined(parts[next++]); }, outputs.at(0));
}

}  // namespace detail

template <class T>
std::function<void(const T&)> Model::train_step(Meters& meters) {
  if (!train_step_.has_value()) {
    return [this, &meters](const T& mine) { default_train_step(detail::refs_of(mine), meters); };
  }
  require_own_step_heeds_options();
  const auto* own = std::any_cast<std::function<StepLogs(const T&)>>(&train_step_);
  if (own == nullptr) throw_other_batch();
  return [own, &meters](const T& mine) {
    for (const auto& [name, values] : (*own)(mine)) meters.add_mean(name, values);
  };
}

template <class T>
History Model::fit(const Batches<T>& batches, const FitOptions<T>& options) {
  require_outside_of_run("fit");
  detail::require_option(options.validation_every >= 1, "fit",
                         lockstep::str("validation_every must be >= 1, got ", options.validation_every),
                         "leave out .validation for a training without it");
  if (options.validation) detail::require_one_validates(options.callbacks);
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
  loop.require_resumable(options.validation, /*training=*/false);
  const auto step = train_step<T>(loop.meters());
  auto captured = strategy().capture(step);
  while (loop.next_epoch()) {
    prepare_training();
    for (const auto& batch : loop.steps(batches)) {
      if (options_.capture) {
        captured(batch);
        note_capture(captured.reason());
      } else {
        strategy().run(step, batch);
      }
    }
    finish_window();
    const bool is_validated = options.validation && (loop.training().epoch + 1) % options.validation_every == 0;
    if (!is_validated) continue;
    loop.begin_validation();
    const auto evaluating = evaluation_mode();
    evaluate_into(loop.meters(), loop.validation_steps(options.validation));
  }
  return loop.history();
}

template <class T>
void Model::evaluate_into(Meters& meters, Steps<T>&& steps) {
  const auto step = [&](const T& mine) { evaluation_step(detail::refs_of(mine), meters); };
  for (const auto& batch : steps) strategy().run(step, batch);
}

template <class T>
Logs Model::evaluate(const Batches<T>& batches) {
  require_outside_of_run("evaluate");
  Loop loop(strategy(), {.metrics = options_.metrics, .verbose = Verbose::Silent});
  loop.next_epoch();
  const auto evaluating = evaluation_mode();
  evaluate_into(loop.meters(), loop.validation_steps(batches));
  loop.next_epoch();
  Logs logs;
  for (const auto& [name, value] : loop.history().epochs.back()) logs[name.substr(4)] = value;  // without "val_"
  return logs;
}

template <class Output, class T>
Output Model::predict(const Batches<T>& batches) {
  if constexpr (!lockstep::detail::all_leaves_v<lockstep::detail::IsTensor, Output>) {
    static_assert(lockstep::detail::never<Output>,
                  "predict joins the rows of tensors: let the model's forward return tensors or structures of them");
    return lockstep::detail::AfterCompileError();
  } else {
    require_outside_of_run("predict");
    require_output(typeid(Output));
    Loop loop(strategy(), {.verbose = Verbose::Silent});
    loop.next_epoch();
    const auto evaluating = evaluation_mode();
    const auto step = [&](const T& mine) {
      const detail::BatchRefs refs = detail::refs_of(mine);
      const Output output = prediction_step(refs).ref().template as<Output>();
      if constexpr (!std::is_same_v<Output, at::Tensor>)
        for_each_leaf(output, [&](const at::Tensor& each) { require_rows(each, refs.rows); });
      return output;
    };
    std::vector<Output> outputs;
    for (const auto& batch : loop.validation_steps(batches))
      outputs.push_back(strategy().gather(strategy().run(step, batch), 0));
    return detail::join_rows(outputs);
  }
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
