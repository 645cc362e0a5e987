#pragma once

#include <algorithm>
#include <any>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/contrib/tower_values.h"
#include "lockstep/contrib/variable_aggregation.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib {

/// The outputs of the last step of a loop. Passed to the function given to `run_steps_on_dataset`, which returns it.
///
///     auto step = [&](contrib::MultiStepContext& ctx, const auto& batch) {
///       auto losses = strategy.call_for_each_tower(train, batch);
///       ctx.set_last_step_output("loss", losses, contrib::VariableAggregation::MEAN);
///     };
///     auto ctx = strategy.run_steps_on_dataset(step, iterator, 100);
///     torch::Tensor loss = ctx.last_step_outputs().at("loss");
class LOCKSTEP_EXPORT MultiStepContext {
 public:
  /// By name, in brackets too: `ctx.last_step_outputs()["loss"]`.
  struct Outputs : std::map<std::string, TowerValue> {
    const TowerValue& operator[](const std::string& name) const;  ///< NotFound unless the step has set it
  };

  MultiStepContext(const MultiStepContext&) = default;  // and no move, which would leave one without a step
  MultiStepContext& operator=(const MultiStepContext&) = default;

  /// Outside of towers: with NONE the output is stored as it is, otherwise it is reduced over the towers at once.
  /// Inside a tower (every tower must call it) an aggregation is required.
  void set_last_step_output(const std::string& name, const TowerValue& output,
                            VariableAggregation aggregation = VariableAggregation::NONE);

  /// Outside of towers: stored as it is. Inside a tower (every tower must call it): the list of the towers' values, or
  /// a single one if all are equal. Strings are stored as std::string.
  template <class T>
  void set_non_tensor_output(const std::string& name, T output);

  /// By name, from the last step only. Values that were not reduced have a component for each tower of all workers (of
  /// this worker, in strategies in which every worker is a separate client).
  const Outputs& last_step_outputs() const { return last_step_outputs_; }

  /// `std::any_cast<std::vector<std::string>>(ctx.non_tensor_outputs().at("name"))`
  const std::map<std::string, std::any>& non_tensor_outputs() const { return non_tensor_outputs_; }

  /// Runs as many steps again, with the next elements of the iterator. The outputs are then from the new last step; if
  /// a step fails they do not change.
  void run_op();

  using Step = std::function<void(MultiStepContext&)>;  ///< one call of the program's step
  /// Calls `step` `iterations` times in cross-tower context; it takes its input by itself. `loop_values`: the number of
  /// `initial_loop_values`, which TensorFlow needs and nothing here reads: none, or as many as the outputs of a step have.
  /// For library code.
  static MultiStepContext run(Strategy& strategy, const Devices& of_all_towers, Step step, int iterations,
                              std::size_t loop_values);

 private:
  MultiStepContext(Strategy& strategy, Devices devices, Step step, int iterations);
  Strategy& strategy() const;  ///< throws if it is gone
  void require_outputs(std::size_t loop_values) const;
  /// Throws unless a step is running: outputs are combined at the end of the last step, and later ones would be missed.
  void require_step(const char* operation) const;
  static void require_one_output(const PerReplica<std::string>& of_towers);
  /// The components that the program sees.
  std::vector<at::Tensor> seen_of(const TowerValue& output) const;

  std::weak_ptr<Strategy*> strategy_;
  Devices devices_;  ///< the devices of all towers
  Step step_;
  int iterations_;
  /// Shared with copies made by a step: it ends for them too.
  std::shared_ptr<bool> is_in_step_ = std::make_shared<bool>(false);
  Outputs last_step_outputs_;
  std::map<std::string, std::any> non_tensor_outputs_;
};

template <class T>
void MultiStepContext::set_non_tensor_output(const std::string& name, T output) {
  require_step("set_non_tensor_output");
  if constexpr (std::convertible_to<T, std::string> && !std::same_as<T, std::string>) {
    set_non_tensor_output<std::string>(name, std::move(output));
  } else if (in_replica_context()) {
    get_replica_context().merge_call(
        [&](Strategy& strategy, const PerReplica<T>& outputs, const PerReplica<std::string>& of_towers) {
          require_one_output(of_towers);
          const bool sees_all = detail::count_merge(strategy, typeid(T)) > 0;
          const std::string output_name = "output \"" + name + '"';  // compared by workers
          const lockstep::detail::CallPlace place(output_name);
          std::vector<T> all(outputs.begin(), outputs.end());
          if (sees_all) all = lockstep::detail::of_all_replicas(strategy, all);
          if constexpr (std::equality_comparable<T> && !std::is_convertible_v<T, at::Tensor>) {
            if (std::all_of(all.begin(), all.end(), [&](const T& one) { return one == all[0]; }))
              all.erase(all.begin() + 1, all.end());
          }
          non_tensor_outputs_[name] = std::move(all);
        },
        std::move(output), name);
  } else {
    non_tensor_outputs_[name] = std::move(output);
  }
}

}  // namespace lockstep::contrib
