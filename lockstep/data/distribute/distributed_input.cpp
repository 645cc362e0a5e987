#include "lockstep/data/distribute/distributed_input.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/pipeline.h"

namespace lockstep::data {
namespace {

/// How many steps pipelines of per-replica batches make. Other workers' pipelines are unknown here.
Cardinality steps_of_pipelines(const std::vector<StagePtr>& pipelines, const ClusterShape& cluster, bool one_for_each,
                               bool partial_steps) {
  const Cardinality first = pipelines.front()->cardinality();
  if (cluster.workers > 1) return first.is_infinite() ? first : Cardinality::unknown();
  if (!one_for_each) {
    const std::int64_t replicas = cluster.replicas_per_worker;
    return first.is_known() ? Cardinality((first.value() + (partial_steps ? replicas - 1 : 0)) / replicas) : first;
  }
  // Until the last one ends, or the first.
  Cardinality steps = first;
  for (const StagePtr& pipeline : pipelines) {
    const Cardinality mine = pipeline->cardinality();
    if (mine.is_unknown() || steps.is_unknown()) return Cardinality::unknown();
    const bool longer = mine.is_infinite() || (steps.is_known() && mine.value() > steps.value());
    if (longer == partial_steps) steps = mine;
  }
  return steps;
}

/// Whether an empty batch of such elements would contain a number that was never read: a scalar has no rows to leave
/// out.
bool has_scalars(const ElementSpec& spec) {
  return spec.components && std::ranges::any_of(*spec.components, [](const ComponentSpec& component) {
           return component.shape.is_scalar();
         });
}

}  // namespace

DistributedSpec DistributedInput::spec() const {
  const bool plain = cluster.workers == 1 && cluster.replicas_per_worker == 1;
  return {plain ? 0 : cluster.replicas_per_worker, element_spec};
}

DistributedSpec DistributedInput::optional_spec() const {
  const DistributedSpec known = spec();
  return cardinality.is_infinite()
             ? known
             : DistributedSpec{known.per_replica, known.element.with_rows(PartialShape::kUnknown)};
}

std::optional<std::string> DistributedInput::position_obstacle() const {
  for (const StagePtr& pipeline : pipelines)
    if (auto obstacle = find_position_obstacle(*pipeline)) return obstacle;
  return std::nullopt;
}

DistributedInput distributed_by_plan(const InputPlan& plan) {
  DistributedInput input{.cluster = plan.cluster,
                         .partial_steps = plan.partial_steps,
                         .cardinality = plan.cardinality,
                         .steps = plan.steps(),
                         .element_spec = plan.element_spec,
                         .fingerprint = plan.fingerprint(),
                         .pipelines = {plan.source()},
                         .everything = plan.everything,
                         .plan = to_string(plan)};
  if (plan.assignment == Assignment::ByReplica) input.agreement = nullptr;
  input.make_source = [plan](const IterationContext& context) { return plan.make_source(context); };
  return input;
}

DistributedInput distributed_pipelines(const std::vector<StagePtr>& pipelines, const ClusterShape& cluster,
                                       bool one_for_each, Assignment assignment) {
  DistributedInput input{.cluster = cluster, .cardinality = pipelines.at(0)->cardinality()};
  input.element_spec = pipelines.front()->element_spec();
  for (const StagePtr& pipeline : pipelines) {
    input.element_spec = input.element_spec.merged_with(pipeline->element_spec());
    // Every replica is sure to have data only if no pipeline ends.
    if (input.cardinality.is_infinite()) input.cardinality = pipeline->cardinality();
  }
  const bool is_endless = input.cardinality.is_infinite();
  input.partial_steps = handles_partial_steps(input.element_spec, is_endless, cluster.workers) ||
                        (assignment == Assignment::ByReplica && !is_endless && !has_scalars(input.element_spec));
  input.steps = steps_of_pipelines(pipelines, cluster, one_for_each, input.partial_steps);
  if (cluster.replicas() > 1 && input.partial_steps)
    input.element_spec = input.element_spec.with_rows(PartialShape::kUnknown);
  input.fingerprint = str("pipelines of a function, worker ", cluster.worker, " of ", cluster.workers, ", ",
                          counted(cluster.replicas_per_worker, "replica"), " each\n");
  input.pipelines = pipelines;
  for (const StagePtr& pipeline : pipelines) input.fingerprint += data::fingerprint(*pipeline);
  input.plan = str(counted(cluster.workers, "worker"), " of ", counted(cluster.replicas_per_worker, "replica"),
                   ", batches from a function\nworker ", cluster.worker, " of ", cluster.workers, ": ",
                   one_for_each ? "a pipeline for each replica\n" : "one pipeline, elements to replicas in turn\n");
  input.make_source = [streams = one_for_each ? pipelines : std::vector{pipelines.front()},
                       replicas = cluster.replicas_per_worker](const IterationContext& context) {
    return whole_elements(streams, replicas, context);
  };
  return input;
}

}  // namespace lockstep::data
