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
  std::vector<MetricPtr> metrics = {};          ///< shown next to the loss
  std::optional<at::ScalarType> autocast = {};  ///< dtype in which forward and loss are computed
  GradScaler* scaler = nullptr;                 ///< for autocast to float16; must outlive the model
  Forward forward = {};                         ///< replaces the network's own forward
  /// Updates the weights once every so many steps, with the mean gradient of their batches. The end of an epoch updates with the
  /// batches that are left.
  std::optional<int> accumulate = {};
  std::optional<double> clip_norm = {};   ///< largest norm of all gradients together
  std::optional<double> clip_value = {};  ///< largest absolute value of an element of a gradient
  /// Converts images to channels-last memory. Make the network channels-last, too: strategy.make<Net>({.channels_last = true}, ...).
  bool channels_last = false;
  /// On a GPU, `fit` replays the training step as a CUDA graph if it can (docs/gpu.md); `capture_reason` says why it could not.
  bool capture = false;
};

/// Options of `Model::fit`.
template <class T>
struct FitOptions {
  int epochs = 1;                                         ///< the number after that of the last epoch, as in Keras
  Batches<T> validation = {};                             ///< evaluated after each epoch; its values begin with "val_"
  int validation_every = 1;                               ///< epochs between two validations
  std::optional<std::int64_t> steps_per_epoch = {};       ///< unset: one pass over the data
  std::vector<std::shared_ptr<Callback>> callbacks = {};  ///< called in this order
  Schedule schedule = {};                                 ///< sets the learning rate before each step
  Verbose verbose = Verbose::Auto;                        ///< how progress is shown
  int initial_epoch = 0;                                  ///< number of the first epoch, from 0
  /// More state to save in checkpoints, apart from "model", "optimizer", "scaler" and "loop".
  std::vector<NamedState> parts = {};
  std::ostream* out = nullptr;  ///< where to print progress; default: standard output
  Resume resume = {};           ///< continues from a checkpoint: `true` for the newest of this training, or a path
  /// Allows data whose position cannot be saved. A resumed training then reads and drops the batches before its position, which may
  /// not be the same ones.
  bool inexact_resume = false;
  /// With a callback that writes checkpoints, SIGTERM to any worker makes all workers save after the same step. Then each calls this
  /// and `fit` returns; without it the process exits with status 143.
  std::function<void()> on_sigterm = {};
};

/// Values that a training step of your own logs, by name. Each element of a tensor counts once, so log one value for each row.
using StepLogs = std::map<std::string, at::Tensor>;

/// A model with its optimizer, loss and metrics: trains, evaluates and predicts on all replicas of its strategy.
///
///     auto net = strategy.make<Net>();
///     auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, 0.003);
///     ls::train::Model model(net, optimizer, {.loss = ls::train::losses::cross_entropy(),
///                                             .metrics = {ls::train::metrics::accuracy()}});
///     auto history = model.fit(digits.shuffle(4096).batch(64), {.epochs = 5, .validation = held_out.batch(256)});
///
/// A batch has an input and a target: a pair, a struct or a torch::data example. Input, target and output may be structures of
/// tensors; then the loss takes these types (losses.h), and `metrics::select` chooses the tensors that a metric measures. Training
/// gives the same bits as a loop by hand with `optimizer.minimize(ls::average_loss(losses))`. Every worker must make the same calls,
/// outside of run.
class LOCKSTEP_EXPORT Model {
 public:
  template <class M>
  Model(MirroredModule<M> net, MirroredOptimizerBase optimizer, ModelOptions options)
      : Model(net.core(), std::move(optimizer), std::move(options), Forward(net)) {}

  /// Replaces the training step: `f(const Batch&)` runs on each replica and returns StepLogs or nothing. The options `.scaler`,
  /// `.accumulate`, `.autocast` and `.channels_last` have no effect on it: do the same in `f`. Training throws InvalidArgument if one
  /// of them is set.
  ///
  ///     model.set_train_step([&](const Rows& mine) {
  ///       auto losses = ...;
  ///       optimizer.minimize(ls::average_loss(losses));
  ///       return ls::train::StepLogs{{"loss", losses.detach()}};
  ///     });
  template <class F>
  void set_train_step(F f) {
    using Batch = decltype(detail::only_of(typename detail::ParametersOf<F>::type()));
    set_train_step<typename Batch::type>(std::move(f));
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

  /// Trains, and returns the loss and the metrics of each epoch.
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

  /// Loss and metrics over all of `batches`, with the network in evaluation mode.
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

  /// The outputs for all rows, in order, on the CPU of every worker. If forward returns a structure of tensors, name its type:
  ///
  ///     const auto [image, mean] = model.predict<VaeOutput>(images);
  template <class Output = at::Tensor, class T>
  Output predict(const Batches<T>& batches);
  template <class Output = at::Tensor, class T>
  Output predict(const data::Dataset<T>& dataset) {
    return predict<Output>(Batches<T>(dataset));
  }

  /// Makes one training step with a global batch and returns its loss and metrics.
  template <class T>
  Logs train_on_batch(const T& batch);

  /// A table of the layers with their parameters, and the memory used by weights and gradients.
  std::string summary() const;

  /// The strategy and the optimizer it trains with, and its options.
  Strategy& strategy() const { return core_->strategy(); }
  MirroredOptimizerBase& optimizer() { return optimizer_; }
  const ModelOptions& options() const { return options_; }
  /// With `.capture`: why the last training step was not replayed from a CUDA graph; empty if it was.
  const std::string& capture_reason() const { return capture_reason_; }

 private:
  Model(std::shared_ptr<lockstep::detail::ModuleCore> core, MirroredOptimizerBase optimizer, ModelOptions options,
        Forward of_network);

  // Inside run, on one replica.
  void default_train_step(const detail::BatchRefs& batch, Meters& meters);
  void evaluation_step(const detail::BatchRefs& batch, Meters& meters) const;
  detail::AnyValue prediction_step(const detail::BatchRefs& batch) const;
  /// The output, and in `losses` those of the rows, if the model has a loss.
  detail::AnyValue compute(const Forward::Input& input, const detail::BatchRefs& batch, at::Tensor* losses) const;
  at::Tensor average(const at::Tensor& losses) const;

  void require_outside_of_run(const char* operation) const;
  void require_output(const std::type_info& output) const;
  static void require_rows(const at::Tensor& output, std::int64_t rows);
  void prepare_training();
  void finish_window();  ///< updates with what an open window of `.accumulate` has
  void note_capture(const std::string& reason);
  std::vector<NamedState> all_parts(std::vector<NamedState> own);
  std::shared_ptr<void> evaluation_mode() const;  ///< puts the modules' own modes back when it goes
  void require_own_step_heeds_options() const;
  [[noreturn]] void throw_other_batch() const;

  /// The training step for batches of T.
  template <class T>
  std::function<void(const T&)> train_step(Meters& meters);
  template <class T>
  void evaluate_into(Meters& meters, Steps<T>&& steps);

  std::shared_ptr<lockstep::detail::ModuleCore> core_;
  MirroredOptimizerBase optimizer_;
  ModelOptions options_;
  std::any train_step_;
  std::string capture_reason_;
};

}  // namespace lockstep::train

#include "lockstep/train/model_templates.h"
