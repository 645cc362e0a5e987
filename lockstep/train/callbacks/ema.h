#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/train/callback.h"

namespace lockstep::train {

/// Options of `ema`.
struct EmaOptions {
  double decay = 0.999;      ///< how much of an average stays at each update of the weights
  bool warm_up = false;      ///< the decay of update n is at most (1 + n) / (10 + n): early averages follow the weights
  bool validation = true;    ///< validation sees the averages in place of the weights
  bool keep = false;         ///< when the training has ended, the model's weights are the averages
  std::string name = "ema";  ///< of its state in checkpoints; without '/'
};

class Ema;

namespace detail {
/// Throws FailedPrecondition if two of `callbacks` would give one model their averages for validation.
LOCKSTEP_EXPORT void require_one_validates(const std::vector<std::shared_ptr<Callback>>& callbacks);
}  // namespace detail

/// Exponential moving averages of a model's weights, which often generalize better than the weights of the last step.
///
///     auto averages = ls::train::ema(net, {.decay = 0.999});
///     model.fit(batches, {.epochs = 10, .validation = held_out, .callbacks = {averages}});
///     averages->swap();  // the model has the averages
///
/// They begin as the weights and follow after each update: not in the middle of a window of accumulation, and not after a skipped
/// step. Buffers, such as the running statistics of batch norm, are not averaged. Checkpoints have the averages.
class LOCKSTEP_EXPORT Ema final : public Callback, private Stateful {
 public:
  Ema(std::shared_ptr<lockstep::detail::ModuleCore> model, EmaOptions options);
  ~Ema() override;
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// Gives the model the averages, or its own weights back. Outside of run; every worker must call it. Throws FailedPrecondition
  /// if the model has the averages of another Ema.
  void swap();
  bool is_swapped() const { return !weights_.empty(); }
  /// Updates of the weights that are part of the averages.
  std::int64_t updates() const { return updates_; }

  std::string name() const override { return options_.name; }
  Decision train_begins(const Training& training) override;
  Decision batch_ends(const Training& training) override;
  Decision validation_begins(const Training& training) override;
  Decision validation_ends(const Training& training, const Logs& logs) override;
  Decision epoch_ends(const Training& training, const Logs& logs) override;
  Decision train_ends(const Training& training) override;
  std::string to_text() const override;
  void from_text(const std::string& text) override;
  Stateful* state() override { return this; }

 private:
  struct All;
  struct Part {
    std::string name;
    at::Tensor weight;
  };
  std::vector<Part> parts() const;  ///< the weights that have an average
  void require_no_other() const;
  friend void detail::require_one_validates(const std::vector<std::shared_ptr<Callback>>& callbacks);
  void begin();
  void follow(const Training& training);
  void write(const std::vector<at::Tensor>& values);

  void capture(Snapshot& into, const std::string& name) const override;
  void check(const Snapshot& from, const std::string& name) const override;
  void restore(const Snapshot& from, const std::string& name) override;

  std::shared_ptr<lockstep::detail::ModuleCore> model_;
  EmaOptions options_;
  std::vector<at::Tensor> averages_;  ///< of each part; none before the first training
  std::vector<at::Tensor> weights_;   ///< the model's own, while it has the averages
  bool is_validating_ = false;        ///< it has them for a validation
  std::int64_t updates_ = 0;
  std::int64_t seen_ = 0;  ///< updates of the optimizer, when the averages last followed
};

/// Keeps moving averages of the weights of `model` while it trains.
template <class M>
std::shared_ptr<Ema> ema(const MirroredModule<M>& model, const EmaOptions& options = {}) {
  return std::make_shared<Ema>(model.core(), options);
}

}  // namespace lockstep::train
