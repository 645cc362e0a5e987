#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/captured_step.h"
#include "lockstep/train/batch_parts.h"
#include "lockstep/train/forward.h"
#include "lockstep/train/loop.h"
#include "lockstep/train/losses.h"

namespace lockstep::train {

/// Options of a Model.
struct ModelOptions {
  Loss loss = {};                               ///< what training minimises
  std::vector<MetricPtr> metrics = {};          ///< shown beside the loss
  std::optional<at::ScalarType> autocast = {};  ///< computes forward and loss in this type
  GradScaler* scaler = nullptr;                 ///< for half precision; outlives the model
  Forward forward = {};                         ///< in place of the network's own
  /// Updates once per so many steps, with the gradients of all of them; each batch counts as one part of so many. The end of an
  /// epoch updates with what there is.
  std::optional<int> accumulate = {};
  std::optional<double> clip_norm = {};   ///< all gradients together are shortened to this norm
  std::optional<double> clip_value = {};  ///< each element of a gradient is limited to this size
  /// Images reach the network in channels-last memory. Its weights must be, too: strategy.make<Net>({.channels_last = true}, ...).
  bool channels_last = false;
  /// On a GPU `fit` records the training step as a CUDA graph, if it can be (docs/gpu.md); `capture_reason` says why not.
  bool capture = false;
};

/// Options of `Model::fit`.
template <class T>
struct FitOptions {
  int epochs = 1;                                         ///< the training ends before epoch number `epochs`
  Batches<T> validation = {};                             ///< after each epoch; its values begin with "val_"
  int validation_every = 1;                               ///< epochs
  std::optional<std::int64_t> steps_per_epoch = {};       ///< unset: one pass over the data
  std::vector<std::shared_ptr<Callback>> callbacks = {};  ///< called in this order
  Schedule schedule = {};                                 ///< sets the learning rate before each step
  Verbose verbose = Verbose::Auto;                        ///< how progress is shown
  int initial_epoch = 0;  ///< the number of the first epoch; the training ends before `epochs`
  /// State of the program's own to save and restore, beside "model", "optimizer", "scaler" and "loop".
  std::vector<NamedState> parts = {};
  std::ostream* out = nullptr;  ///< where progress goes in place of standard output
  Resume resume = {};           ///< where the training begins: `true`, or the path of a checkpoint
  /// Accepts data whose position cannot be saved: a resumed training reads the batches before its position again.
  bool inexact_resume = false;
  /// With a callback that writes checkpoints, SIGTERM to any worker makes all save at the same step. Then each of them calls this
  /// and `fit` returns; without it the process ends with status 143.
  std::function<void()> on_sigterm = {};
};

/// What a training step of your own logs: a tensor with one value for each row, or any other number of values; each counts once.
using StepLogs = std::map<std::string, at::Tensor>;

namespace detail {

template <class F>
struct StepArgument;
template <class R, class C, class T>
struct StepArgument<R (C::*)(const T&) const> : std::type_identity<T> {};
template <class R, class C, class T>
struct StepArgument<R (C::*)(const T&)> : std::type_identity<T> {};

}  // namespace detail

/// A model with its optimizer, loss and metrics: trains, evaluates and predicts on all replicas of its strategy.
///
///     auto net = strategy.make<Net>();
///     auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, 0.003);
///     ls::train::Model model(net, optimizer, {.loss = ls::train::losses::cross_entropy(),
///                                             .metrics = {ls::train::metrics::accuracy()}});
///     auto history = model.fit(digits.shuffle(4096).batch(64), {.epochs = 5, .validation = held_out.batch(256)});
///
/// A batch has an input and a target: a pair, a struct or a torch::data example. Both may be structures of tensors, as what the
/// network's forward returns may be; then give the model a loss of these types (losses.h), and choose what metrics measure by
/// `metrics::select`. The weights have the same bits as after a loop by hand with `optimizer.minimize(ls::average_loss(losses))`.
/// All calls belong outside of run; every worker makes them.
class LOCKSTEP_EXPORT Model {
 public:
  template <class M>
  Model(MirroredModule<M> net, MirroredOptimizerBase optimizer, ModelOptions options)
      : Model(net.core(), std::move(optimizer), std::move(options), Forward(net)) {}

  /// Replaces the training step: `f(const Batch&)` runs on each replica and returns StepLogs or nothing. It does itself what
  /// `.scaler`, `.accumulate`, `.autocast` and `.channels_last` do in the default step; with one of them training throws
  /// InvalidArgument.
  ///
  ///     model.set_train_step([&](const Rows& mine) {
  ///       auto losses = ...;
  ///       optimizer.minimize(ls::average_loss(losses));
  ///       return ls::train::StepLogs{{"loss", losses.detach()}};
  ///     });
  template <class F>
  void set_train_step(F f) {
    set_train_step<typename detail::StepArgument<decltype(&F::operator())>::type>(std::move(f));
  }
  template <class T, class F>
  void set_train_step(F f) {
    train_step_ = std::function<StepLogs(const T&)>([f = std::move(f)](const T& mine) mutable -> StepLogs {
      if constexpr (std::is_void_v<decltype(f(mine))>) {
        f(mine);
        return {};
      } else {
        return f(mine);
      }
    });
  }

  /// Trains for some epochs and returns the values of each.
  template <class T>
  History fit(const Batches<T>& batches, const FitOptions<T>& options = {});
  template <class T>
  History fit(const data::Dataset<T>& dataset, const FitOptions<T>& options = {}) {
    return fit(Batches<T>(dataset), options);
  }
  template <class T>
  History fit(const DistributedDataset<T>& dataset, const FitOptions<T>& options = {}) {
    return fit(Batches<T>(dataset), options);
  }

  /// Loss and metrics over all of `batches`, in evaluation mode.
  template <class T>
  Logs evaluate(const Batches<T>& batches);
  template <class T>
  Logs evaluate(const data::Dataset<T>& dataset) {
    return evaluate(Batches<T>(dataset));
  }
  template <class T>
  Logs evaluate(const DistributedDataset<T>& dataset) {
    return evaluate(Batches<T>(dataset));
  }

  /// The outputs for all rows, in their order, on the CPU of every worker. A structure of tensors by its type:
  ///
  ///     const auto [image, mean] = model.predict<VaeOutput>(images);
  template <class Output = at::Tensor, class T>
  Output predict(const Batches<T>& batches);
  template <class Output = at::Tensor, class T>
  Output predict(const data::Dataset<T>& dataset) {
    return predict<Output>(Batches<T>(dataset));
  }

  /// One training step with a batch that you have; returns its loss and metrics.
  template <class T>
  Logs train_on_batch(const T& batch);

  /// A table of the layers with their parameters, and the memory that weights and gradients take.
  std::string summary() const;

  /// The strategy and the optimizer it trains with, and its options.
  Strategy& strategy() const { return core_->strategy(); }
  MirroredOptimizerBase& optimizer() { return optimizer_; }
  const ModelOptions& options() const { return options_; }
  /// With `.capture`: why the last training step was a plain run; empty if it was a CUDA graph.
  const std::string& capture_reason() const { return capture_reason_; }

 private:
  Model(std::shared_ptr<lockstep::detail::ModuleCore> core, MirroredOptimizerBase optimizer, ModelOptions options,
        Forward of_network);

  // Inside run, on one replica.
  void default_train_step(const detail::BatchRefs& batch, Meters& meters);
  void evaluation_step(const detail::BatchRefs& batch, Meters& meters) const;
  detail::AnyValue prediction_step(const detail::BatchRefs& batch) const;
  detail::AnyValue output_of(const Forward::Input& input) const;
  at::Tensor average(const at::Tensor& losses) const;

  void require_outside_of_run(const char* operation) const;
  static void require_interval(int validation_every);
  void require_output(const std::type_info& output) const;
  static void require_rows(const at::Tensor& output, std::int64_t rows);
  void prepare_training();
  void finish_window();  ///< updates with what an open window of `.accumulate` has
  void note_capture(const std::string& reason);
  std::vector<NamedState> all_parts(std::vector<NamedState> own);
  std::vector<bool> enter_evaluation() const;  ///< the modes to go back to
  void leave_evaluation(const std::vector<bool>& modes) const;
  void require_own_step_heeds_options() const;
  [[noreturn]] void throw_other_batch() const;

  /// The training step for batches of T.
  template <class T>
  std::function<void(const T&)> train_step(Meters& meters);
  template <class T>
  void evaluate_into(Meters& meters, Steps<T>&& steps);

  /// Evaluation mode until the end of the block.
  struct Evaluation {
    explicit Evaluation(const Model& model) : model_(model), modes_(model.enter_evaluation()) {}
    ~Evaluation() { model_.leave_evaluation(modes_); }
    Evaluation(const Evaluation&) = delete;
    Evaluation& operator=(const Evaluation&) = delete;
    const Model& model_;
    const std::vector<bool> modes_;
  };

  std::shared_ptr<lockstep::detail::ModuleCore> core_;
  MirroredOptimizerBase optimizer_;
  ModelOptions options_;
  std::any train_step_;
  std::string capture_reason_;
};

}  // namespace lockstep::train

#include "lockstep/train/model_templates.h"
