#include "lockstep/contrib/multi_step_context.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/contrib/tower_rules.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"

namespace lockstep::contrib {

using lockstep::detail::StrategyAccess;

MultiStepContext::MultiStepContext(Strategy& strategy, Devices devices, Step step, int iterations)
    : strategy_(StrategyAccess::alive(strategy)),
      devices_(std::move(devices)),
      step_(std::move(step)),
      iterations_(iterations) {}

const TowerValue& MultiStepContext::Outputs::operator[](const std::string& name) const {
  if (const auto found = find(name); found != end()) return found->second;
  throw NotFound(errors::kStructure, {.what = str("the last step has set no output \"", name, "\""),
                                      .where = "last_step_outputs",
                                      .help = str("call set_last_step_output(\"", name, "\", ...) in the step")});
}

Strategy& MultiStepContext::strategy() const {
  return StrategyAccess::require_alive(strategy_, "what run_steps_on_dataset returned");
}

void MultiStepContext::set_last_step_output(const std::string& name, const TowerValue& output,
                                            VariableAggregation aggregation) {
  constexpr const char* kOperation = "set_last_step_output";
  require_step(kOperation);
  // After map, other workers have different numbers of results.
  if (aggregation == Aggregation::None && (in_replica_context() || output.kind() == TowerValue::Kind::MapOutput)) {
    throw InvalidArgument(errors::kNotReducible,
                          {.what = str("the output \"", name, "\" of replicas or map needs an aggregation, got NONE"),
                           .where = kOperation,
                           .help = "pass ReduceOp::SUM or MEAN, or set the output outside of replicas"});
  }
  const std::string output_name = str("output \"", name, "\"");  // compared by workers
  if (in_replica_context()) {
    get_replica_context().merge_call(
        [&](Strategy& strategy, const PerReplica<at::Tensor>& outputs, const PerReplica<std::string>& of_towers) {
          require_one_output(of_towers);
          detail::count_merge(strategy, typeid(*this));
          const lockstep::detail::CallPlace place(output_name);
          last_step_outputs_.insert_or_assign(name, detail::aggregate(strategy, aggregation, outputs, kOperation));
        },
        output.tensor(), str(output_name, ", ", to_string(aggregation)));
  } else if (aggregation == Aggregation::None) {
    last_step_outputs_.insert_or_assign(name, output.copied());
  } else {
    const lockstep::detail::CallPlace place(output_name);
    last_step_outputs_.insert_or_assign(name, detail::aggregate(strategy(), aggregation, output, kOperation));
  }
}

void MultiStepContext::require_one_output(const PerReplica<std::string>& of_towers) {
  for (std::size_t k = 1; k < of_towers.size(); ++k) {
    if (of_towers[k] == of_towers[0]) continue;
    throw FailedPrecondition(errors::kDifferentCollective,
                             {.what = "replicas set different outputs of a step at the same point",
                              .seen = str(lockstep::detail::replica_name(0), ": ", of_towers[0], "; ",
                                          lockstep::detail::replica_name(k), ": ", of_towers[k]),
                              .help = "set the same outputs in the same order on every replica"});
  }
}

void MultiStepContext::require_step(const char* operation) const {
  if (*is_in_step_) return;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = str(operation, " was called when no step was running"),
                            .where = operation,
                            .help = str("call ", operation, " in the function that runs a step")});
}

void MultiStepContext::run_op() {
  if (*is_in_step_) {
    throw FailedPrecondition(errors::kWrongContext, {.what = "run_op was called inside a step",
                                                     .where = "run_op",
                                                     .help = "call it on what run_steps_on_dataset has returned"});
  }
  lockstep::detail::require_cross_replica(strategy(), "run_op");
  auto outputs = std::exchange(last_step_outputs_, {});
  auto others = std::exchange(non_tensor_outputs_, {});
  try {
    const Scope scope(strategy());
    for (int i = 0; i < iterations_; ++i) {
      last_step_outputs_.clear();
      non_tensor_outputs_.clear();
      *is_in_step_ = true;
      step_(*this);
      *is_in_step_ = false;
    }
    for (auto& [name, output] : last_step_outputs_) {
      const std::string output_name = str("output \"", name, "\"");
      const lockstep::detail::CallPlace place(output_name);
      output.set_values_of_all_towers(seen_of(output));
    }
  } catch (...) {
    *is_in_step_ = false;
    last_step_outputs_ = std::move(outputs);
    non_tensor_outputs_ = std::move(others);
    throw;
  }
}

std::vector<at::Tensor> MultiStepContext::seen_of(const TowerValue& output) const {
  return detail::client_of(strategy()) != nullptr ? output.unwrap(strategy(), devices_) : output.local_values();
}

void MultiStepContext::require_outputs(std::size_t loop_values) const {
  std::size_t values = 0;
  for (const auto& [name, output] : last_step_outputs_) values += seen_of(output).size();
  if (values == loop_values) return;
  throw InvalidArgument(
      errors::kStructure,
      {.what = str("initial_loop_values must have one tensor for each last-step output, got ", loop_values, " for ",
                   values),
       .help = "pass one tensor per output, sorted by name (a PerReplica output counts once per replica), or none"});
}

MultiStepContext MultiStepContext::run(Strategy& strategy, const Devices& of_all_towers, Step step, int iterations,
                                       std::size_t loop_values) {
  if (iterations < 1) {
    throw InvalidArgument(errors::kBadOption, {.what = str("iterations must be >= 1, got ", iterations),
                                               .help = "leave out the call if there is no step to run"});
  }
  if (loop_values > 0) {
    step = [step = std::move(step), loop_values, is_first = true](MultiStepContext& context) mutable {
      step(context);
      if (std::exchange(is_first, false)) context.require_outputs(loop_values);
    };
  }
  MultiStepContext context(strategy, of_all_towers, std::move(step), iterations);
  context.run_op();
  return context;
}

}  // namespace lockstep::contrib
