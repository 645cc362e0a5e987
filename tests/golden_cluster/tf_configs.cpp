#include <cstdlib>

#include "lockstep/comm/cluster/roles.h"
#include "tests/golden_cluster/cases.h"

namespace lockstep::golden_cluster {
namespace {

/// The multi-worker strategy's interpretation of the resolver.
json strategy_of(const ClusterResolver& resolver) {
  const ClusterDescription description = describe_cluster(resolver);
  json result = {{"mode", description.is_local() ? "local" : "multi_worker"},
                 {"num_workers", description.num_workers()},
                 {"id_in_cluster", description.id},
                 {"is_chief", description.is_chief()}};
  if (description.is_local()) return result;
  const ClusterSpec cluster = resolver.cluster_spec();
  const bool evaluates = resolver.task_type() == "evaluator";
  result["collective_leader"] = collective_leader(cluster, {resolver.task_type(), resolver.task_id()});
  result["coordination_leader"] = evaluates ? json(nullptr) : json(coordination_leader(cluster));
  result["worker_device"] = to_string(description.device());
  return result;
}

}  // namespace

json run_tf_config(const Case& given) {
  given.allow_inputs({"tf_config", "args", "master_args", "verified"});
  if (given["tf_config"].is_null()) {
    unsetenv("TF_CONFIG");
  } else {
    setenv("TF_CONFIG", given["tf_config"].get<std::string>().c_str(), 1);
  }
  json args = given.data.value("args", json::object());
  args.erase("environment");  // TensorFlow's environment: inside Google or not
  const TFConfigClusterResolver resolver(task_options(args));
  const TaskOptions query = task_options(given.data.value("master_args", json::object()));
  return {{"task_type", outcome_of([&] { return or_null(resolver.task_type()); })},
          {"task_id", outcome_of([&] { return or_null(resolver.task_id()); })},
          {"rpc_layer", outcome_of([&] { return or_null(resolver.rpc_layer()); })},
          {"cluster", outcome_of([&] { return as_dict(resolver.cluster_spec()); })},
          {"jobs", outcome_of([&] { return json(resolver.cluster_spec().jobs()); })},
          {"master", outcome_of([&] { return json(resolver.master(query)); })},
          {"strategy", outcome_of([&] { return strategy_of(resolver); })}};
}

}  // namespace lockstep::golden_cluster
