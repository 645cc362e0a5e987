#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <initializer_list>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/tensor_digest.h"

namespace lockstep {

/// Whether an optimizer's update of an element looks at that element only. Parameters of such optimizers are cut into
/// shards; for any other class whole parameters are dealt to the replicas. Specialise it for a class of your own.
template <class Opt>
inline constexpr bool is_elementwise_v = false;
template <>
inline constexpr bool is_elementwise_v<torch::optim::SGD> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::Adam> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::AdamW> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::RMSprop> = true;
template <>
inline constexpr bool is_elementwise_v<torch::optim::Adagrad> = true;

/// The class of an optimizer's options. Known for LibTorch's classes and those that derive from them; specialise it for
/// others to make them with a learning rate or with groups in braces.
template <class Opt>
struct OptimizerOptionsOf {};
template <class Opt>
  requires std::is_base_of_v<torch::optim::SGD, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::SGDOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::Adam, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::AdamOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::AdamW, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::AdamWOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::RMSprop, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::RMSpropOptions> {
};
template <class Opt>
  requires std::is_base_of_v<torch::optim::Adagrad, Opt>
struct OptimizerOptionsOf<Opt> : std::type_identity<torch::optim::AdagradOptions> {
};

/// Parameters with options of their own, by name: those that begin with one of the prefixes and are in no earlier
/// group.
///
///     strategy.make_optimizer<SGD>(model, {{{"head."}, SGDOptions(0.1)}, {{""}, SGDOptions(0.01)}});
template <class Options>
struct ParameterGroup {
  std::vector<std::string> prefixes;
  Options options;
};

/// A `torch::optim` class over the parameters of a mirrored model, shared out among the replicas: each adds up the
/// gradients of its part and updates it for all. Called inside `run`, by every replica:
///
///     optimizer.minimize(loss);              // backward, reduce over replicas, update, forget the gradients
///
/// or in parts: `backward(loss)`, `reduce_gradients()`, `clip_global_norm(1.0)`, `step()`. Gradients are summed over
/// replicas: scale the loss by the global batch (average_loss). Results do not depend on how parameters are shared out.
template <class Opt>
class MirroredOptimizer {
 public:
  explicit MirroredOptimizer(std::shared_ptr<OptimizerCore> core) : core_(std::move(core)) {}

  /// Returns whether the weights were updated: false inside an `accumulate` window and for skipped steps.
  bool minimize(const at::Tensor& loss) { return core_->minimize(loss); }

  /// The same for half precision: scales the loss, and leaves the step out where that made gradients infinite.
  bool minimize(const at::Tensor& loss, GradScaler& scaler) { return core_->minimize(loss, &scaler); }

  void backward(const at::Tensor& loss) { core_->backward(loss); }
  /// Of the scaled loss.
  void backward(const at::Tensor& loss, const GradScaler& scaler) { core_->backward(loss, &scaler); }
  void reduce_gradients(ReduceOp op) { core_->reduce_gradients(op); }
  void reduce_gradients() { core_->reduce_gradients(core_->reduce_op()); }  ///< as set; unset: the sum
  /// What the replicas have reduced together, by parameter name, as it is now (clipped, still scaled): copies, to be
  /// looked at. Parameters without a gradient are left out.
  torch::OrderedDict<std::string, at::Tensor> gradients() { return core_->gradients(); }
  /// Shortens all reduced gradients together to at most `max_norm`; returns their norm before.
  double clip_global_norm(double max_norm) { return core_->clip_global_norm(max_norm); }
  void clip_value(double limit) { core_->clip_value(limit); }
  bool gradients_are_finite() { return core_->gradients_are_finite(); }
  /// After `backward(loss, scaler)` and `reduce_gradients()`: divides the gradients by their scale and tells the scaler
  /// how they were. False where any is not finite: they are dropped, and the step is to be left out on all replicas.
  bool unscale(GradScaler& scaler) { return core_->unscale(scaler); }
  void step() { core_->step(); }
  /// Drops the gradients. An open `accumulate` window begins anew, with a warning the first time: minimize needs no
  /// zero_grad.
  void zero_grad() { core_->zero_grad(); }

  // Settings, outside of run. Those of clipping are for `minimize`.
  void set_reduce_op(ReduceOp op) { core_->set_reduce_op(op); }
  void set_clip_global_norm(std::optional<double> max_norm) { core_->set_clip_global_norm(max_norm); }
  void set_clip_value(std::optional<double> limit) { core_->set_clip_value(limit); }
  void set_not_finite(NotFinite policy) { core_->set_not_finite(policy); }
  /// Update once per `calls` calls of minimize, with the gradients of all of them: one large batch in parts. To update
  /// with what an open window has so far: `reduce_gradients()` and `step()`.
  void accumulate(int calls) { core_->set_accumulate(calls); }

  /// Compare what the replicas hold every so many steps; DataLoss names the replica and the tensor that differ.
  void set_digest(const DigestOptions& options) { core_->set_digest(options); }
  /// Of all weights and of all that is remembered about them, by name; independent of the number of replicas. Two
  /// trainings that went the same way have the same ones. Outside of run.
  std::vector<TensorDigest> digests() const { return detail::digests_of_training(*core_); }

  /// The one place to change an option: `optimizer.options<SGDOptions>().momentum(0.5)`,
  /// `optimizer.set_learning_rate(0.01)`. Takes effect at the next step.
  template <class Options>
  Options& options(std::size_t group = 0) {
    detail::require_outside_of_run("options");
    auto* const found = dynamic_cast<Options*>(&core_->options(group));
    if (found == nullptr) OptimizerCore::throw_other_options();
    return *found;
  }
  double learning_rate(std::size_t group = 0) const { return core_->options(group).get_lr(); }
  void set_learning_rate(double rate) { core_->set_learning_rate(rate); }  ///< of all groups
  std::size_t group_count() const { return core_->group_count(); }
  std::int64_t steps() const { return core_->steps(); }  ///< applied updates
  std::int64_t skipped_steps() const { return core_->skipped_steps(); }

  /// What the optimizer remembers, by parameter name, and under "" the number of steps; the same for every number of
  /// replicas. Outside of run.
  OptimizerState state() const { return detail::read_state(*core_); }
  void load_state(const OptimizerState& state) { detail::write_state(*core_, state); }

  const std::shared_ptr<OptimizerCore>& core() const { return core_; }

 private:
  std::shared_ptr<OptimizerCore> core_;
};

namespace detail {

/// The indices of the parameters that fall into each group; InvalidArgument if a group stays empty.
LOCKSTEP_EXPORT std::vector<std::vector<int>> assign_groups(const ModuleCore& module,
                                                            const std::vector<std::vector<std::string>>& prefixes);

}  // namespace detail

template <class Opt, class Model, class Options>
MirroredOptimizer<Opt> make_optimizer_with_groups(Strategy& strategy, const Model& model,
                                                  const std::vector<ParameterGroup<Options>>& groups) {
  if constexpr (std::is_same_v<Opt, torch::optim::LBFGS>) {
    throw Unimplemented(
        errors::kOptimizer,
        {.what = "LBFGS cannot be mirrored: it evaluates the loss again and again inside one step",
         .help = "use SGD, Adam, AdamW, RMSprop, Adagrad or another optimizer whose step takes the gradients once"});
  }
  if (&model.core()->strategy() != &strategy) {
    throw InvalidArgument(errors::kMixedStrategies, {.what = "the model belongs to another strategy",
                                                     .where = "make_optimizer",
                                                     .help = "make model and optimizer with the same strategy"});
  }
  if (groups.empty())
    throw InvalidArgument(errors::kOptimizer,
                          {.what = "an optimizer needs at least one parameter group", .where = "make_optimizer"});
  std::vector<std::vector<std::string>> prefixes;
  for (const auto& group : groups) prefixes.push_back(group.prefixes);
  const auto assigned = detail::assign_groups(*model.core(), prefixes);
  std::vector<OptimizerCore::Group> core_groups;
  for (std::size_t g = 0; g < groups.size(); ++g)
    core_groups.push_back({assigned[g], std::make_unique<Options>(groups[g].options)});
  const Options defaults = groups.at(0).options;
  auto make_inner = [defaults](const OptimizerCore::Groups& inner) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Opt>(inner, defaults);
  };
  return MirroredOptimizer<Opt>(std::make_shared<OptimizerCore>(model.core(), std::move(core_groups), make_inner,
                                                                is_elementwise_v<Opt>, detail::state_access_of<Opt>(),
                                                                detail::fused_update_of<Opt>()));
}

template <class Opt, class Model, class Options>
MirroredOptimizer<Opt> Strategy::make_optimizer(const Model& model, const Options& options) {
  detail::require_cross_replica(*this, "make_optimizer");
  if constexpr (std::is_arithmetic_v<Options>) {
    using Own = typename OptimizerOptionsOf<Opt>::type;
    return make_optimizer_with_groups<Opt>(*this, model,
                                           std::vector<ParameterGroup<Own>>{{{""}, Own(static_cast<double>(options))}});
  } else {
    return make_optimizer_with_groups<Opt>(*this, model, std::vector<ParameterGroup<Options>>{{{""}, options}});
  }
}

template <class Opt, class Model>
MirroredOptimizer<Opt> Strategy::make_optimizer(
    const Model& model, std::initializer_list<ParameterGroup<typename OptimizerOptionsOf<Opt>::type>> groups) {
  detail::require_cross_replica(*this, "make_optimizer");
  return make_optimizer_with_groups<Opt>(*this, model,
                                         std::vector<ParameterGroup<typename OptimizerOptionsOf<Opt>::type>>(groups));
}

template <class Opt, class Options, class Model>
MirroredOptimizer<Opt> Strategy::make_optimizer(const Model& model,
                                                const std::vector<ParameterGroup<Options>>& groups) {
  detail::require_cross_replica(*this, "make_optimizer");
  return make_optimizer_with_groups<Opt>(*this, model, groups);
}

}  // namespace lockstep
