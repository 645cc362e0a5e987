#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/nn/digest.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/nn/optimizer_class.h"
#include "lockstep/nn/optimizer_settings.h"
#include "lockstep/nn/optimizer_traits.h"
#include "lockstep/nn/step_observer.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

namespace detail {
struct OptimizerCore;  // optimizer_core.h
}

/// Operations of every MirroredOptimizer, whatever its optimizer class.
class LOCKSTEP_EXPORT MirroredOptimizerBase {
 public:
  explicit MirroredOptimizerBase(std::shared_ptr<detail::OptimizerCore> core) : core_(std::move(core)) {}

  /// For LibTorch's schedulers, which do not accept this class.
  template <class Torch>
    requires std::is_same_v<Torch, torch::optim::Optimizer>
  operator Torch&() const {  // NOLINT(google-explicit-constructor)
    static_assert(detail::never<Torch>,
                  "an optimizer of Lockstep is not a torch::optim::Optimizer: for a schedule call "
                  "optimizer.set_learning_rate(rate), with a rate from ls::StepSchedule and its kin if you like");
  }

  // Call these inside run, on every replica.

  /// Runs backward, sums gradients over replicas, updates the weights and drops the gradients. Returns whether the
  /// weights were updated: false inside a `set_accumulate` window and for skipped steps. A GPU may not know yet: a step
  /// that will be skipped counts as updated here; `skipped_steps()` knows. For half precision `scaler` scales the loss,
  /// and skips the step if that made gradients infinite.
  bool minimize(const at::Tensor& loss, GradScaler* scaler = nullptr);
  bool minimize(const at::Tensor& loss, GradScaler& scaler) { return minimize(loss, &scaler); }

  /// The same with existing gradients, such as those returned by torch::autograd::grad: one per entry of
  /// `model->parameters()`, in order, or by name. Undefined: none. Clips and checks as `minimize` does; updates at
  /// once.
  bool apply_gradients(const std::vector<at::Tensor>& gradients, GradientsOf whose = GradientsOf::ThisReplica);
  bool apply_gradients(const torch::OrderedDict<std::string, at::Tensor>& gradients,
                       GradientsOf whose = GradientsOf::ThisReplica);

  // For finer control, the parts of minimize.
  void backward(const at::Tensor& loss);
  void backward(const at::Tensor& loss, const GradScaler& scaler);  ///< scales the loss
  void reduce_gradients();                                          ///< with the operation of `set_reduce_op`
  void reduce_gradients(ReduceOp op);
  /// Copies of the reduced gradients in their current form (clipped, still scaled), by parameter name, for logging and
  /// plotting. Parameters without a gradient are omitted.
  torch::OrderedDict<std::string, at::Tensor> gradients();
  bool gradients_are_finite();
  /// After `backward(loss, scaler)` and `reduce_gradients()`: divides the gradients by their scale and reports to the
  /// scaler. False if any is not finite: they are dropped, and all replicas skip the step.
  bool unscale(GradScaler& scaler);
  /// Scales all reduced gradients down to a total norm of at most `max_norm`; returns the norm before.
  double clip_global_norm(double max_norm);
  void clip_value(double limit);
  void step();
  /// Drops the gradients. Not needed with `minimize`; it restarts an open window, with a warning the first time.
  void zero_grad();

  /// Settings, outside of run. Those of clipping are for `minimize` and `apply_gradients`.
  void set_reduce_op(ReduceOp op);
  void set_clip_global_norm(std::optional<double> max_norm);
  void set_clip_value(std::optional<double> limit);
  void set_non_finite_policy(NonFinitePolicy policy);
  /// Update once per `calls` calls of minimize, with the gradients of all of them: one large batch in parts. To update
  /// early, with an open window's gradients, call `reduce_gradients()` and `step()`.
  void set_accumulate(int calls);
  /// Compare the replicas' weights and states every so many steps; DataLoss names the replica and the tensor that
  /// differ.
  void set_digest(const DigestOptions& options);
  /// `observer` sees every step from now on (nn/step_observer.h), after those attached before it.
  void observe(std::shared_ptr<StepObserver> observer);
  void set_learning_rate(double rate);                     ///< all groups
  void set_learning_rate(double rate, std::size_t group);  ///< one group

  /// The learning rate of a group, and how many groups there are.
  double learning_rate(std::size_t group = 0) const;
  std::size_t group_count() const;
  std::int64_t steps() const;          ///< applied updates
  std::int64_t skipped_steps() const;  ///< updates left out because gradients were not finite

  /// The optimizer's state by parameter name, with the number of steps under ""; the same for every number of replicas.
  /// Outside of run.
  OptimizerState state() const;
  void load_state(const OptimizerState& state);
  /// Digests of all weights and their optimizer state, by name; independent of the number of replicas. Equal trainings
  /// have equal digests. Outside of run.
  std::vector<TensorDigest> digests() const;

  /// For library code.
  const std::shared_ptr<detail::OptimizerCore>& core() const { return core_; }

 protected:
  torch::optim::OptimizerOptions& options_outside_of_run(std::size_t group) const;
  [[noreturn]] static void throw_other_options();

 private:
  void backward(const at::Tensor& loss, const GradScaler* scaler);
  torch::optim::OptimizerOptions& any_options(std::size_t group) const;

  std::shared_ptr<detail::OptimizerCore> core_;
};

/// "torch::optim::Adam on 2 replicas: 3 steps, learning rate 0.01"
LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const MirroredOptimizerBase& optimizer);

/// A `torch::optim` class over the parameters of a mirrored model, divided among the replicas: each sums the gradients
/// of its part and updates it for all. Made by `strategy.make_optimizer`. Inside `run`, on every replica:
///
///     optimizer.minimize(loss);
///
/// or in parts: `backward(loss)`, `reduce_gradients()`, `clip_global_norm(1.0)`, `step()`. Gradients are summed over
/// replicas, so divide the loss by the global batch (average_loss). Results do not depend on the division. Copies of
/// the handle refer to the same optimizer.
template <class Opt>
class MirroredOptimizer : public MirroredOptimizerBase {
  template <class O>
  struct OptionsOrAny : std::type_identity<torch::optim::OptimizerOptions> {};
  template <class O>
    requires requires { typename OptimizerOptionsOf<O>::type; }
  struct OptionsOrAny<O> : OptimizerOptionsOf<O> {};

 public:
  using MirroredOptimizerBase::MirroredOptimizerBase;

  /// The only place to change an option; takes effect at the next step. Outside of run.
  ///
  ///     optimizer.options().momentum(0.5);                 // SGDOptions& for SGD
  ///     optimizer.options<MyOptions>(1).lr(0.01);          // if OptimizerOptionsOf is not specialised for the class
  template <class Options = typename OptionsOrAny<Opt>::type>
  Options& options(std::size_t group = 0) {
    auto* const found = dynamic_cast<Options*>(&options_outside_of_run(group));
    if (found == nullptr) throw_other_options();
    return *found;
  }
};

/// Parameters with their own options, by name: those with one of the prefixes that are not in an earlier group. Names
/// match by component: "fc1" matches "fc1.weight", not "fc10.weight"; "" matches all.
///
///     strategy.make_optimizer<SGD>(model, {{{"head."}, SGDOptions(0.1)}, {{""}, SGDOptions(0.01)}});
template <class Options>
struct ParameterGroup {
  std::vector<std::string> prefixes;  ///< prefixes of parameter names
  Options options;                    ///< options for these parameters
};

namespace detail {

/// Checks everything before anything is made.
LOCKSTEP_EXPORT std::shared_ptr<OptimizerCore> make_optimizer_core(Strategy& strategy,
                                                                   const std::shared_ptr<ModuleCore>& model,
                                                                   std::vector<GroupRecipe> groups,
                                                                   const OptimizerClass& cls);

/// The class of options in a list of parameter groups.
template <class Groups>
using OptionsIn = std::remove_cvref_t<decltype(std::declval<const Groups&>().begin()->options)>;

template <class Opt, class Model, class Groups>
MirroredOptimizer<Opt> make_optimizer_with_groups(Strategy& strategy, const Model& model, const Groups& groups) {
  if constexpr (!is_mirrored_module_v<Model>) {
    static_assert(never<Model>,
                  "make_optimizer needs the model that strategy.make returned, not a module of one replica");
    return AfterCompileError();
  } else if constexpr (!std::is_constructible_v<Opt, const OptimizerClass::Groups&, const OptionsIn<Groups>&>) {
    static_assert(never<Opt, Groups>,
                  "make_optimizer<Opt>(model, options): Opt cannot be built with these options; give those of its own "
                  "class, such as AdamOptions for Adam");
    return AfterCompileError();
  } else {
    using Options = OptionsIn<Groups>;
    std::vector<GroupRecipe> recipes;
    for (const auto& group : groups) recipes.push_back({group.prefixes, std::make_unique<Options>(group.options)});
    return MirroredOptimizer<Opt>(
        make_optimizer_core(strategy, model.core(), std::move(recipes), optimizer_class_of<Opt, Options>()));
  }
}

}  // namespace detail

template <class Opt, class Model, class Options>
MirroredOptimizer<Opt> Strategy::make_optimizer(const Model& model, const Options& options) {
  if constexpr (std::is_arithmetic_v<Options>) {
    return make_optimizer<Opt>(model, typename OptimizerOptionsOf<Opt>::type(static_cast<double>(options)));
  } else {
    const ParameterGroup<Options> all{{""}, options};
    return detail::make_optimizer_with_groups<Opt>(*this, model, std::initializer_list<ParameterGroup<Options>>{all});
  }
}

template <class Opt, class Model>
MirroredOptimizer<Opt> Strategy::make_optimizer(
    const Model& model, std::initializer_list<ParameterGroup<typename OptimizerOptionsOf<Opt>::type>> groups) {
  return detail::make_optimizer_with_groups<Opt>(*this, model, groups);
}

template <class Opt, class Options, class Model>
MirroredOptimizer<Opt> Strategy::make_optimizer(const Model& model,
                                                const std::vector<ParameterGroup<Options>>& groups) {
  return detail::make_optimizer_with_groups<Opt>(*this, model, groups);
}

}  // namespace lockstep
