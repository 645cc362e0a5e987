#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/roles.h"
#include "lockstep/comm/cluster/slurm_resolver.h"
#include "tests/golden_cluster/cases.h"

namespace lockstep::golden_cluster {
namespace {

ClusterSpec cluster_of(const json& value) { return parse_cluster(value.dump()); }

json cluster_fact(const Case& given) {
  given.allow_inputs({"kind", "cluster", "task_type", "task_id"});
  const auto cluster = [&] { return cluster_of(given["cluster"]); };
  const Task task{argument<std::string>(given.data, "task_type"), argument<std::int64_t>(given.data, "task_id")};
  return {{"is_chief", outcome_of([&] { return json(is_chief(cluster(), task)); })},
          {"id_in_cluster", outcome_of([&] { return json(id_in_cluster(cluster(), task)); })},
          {"collective_leader", outcome_of([&] { return json(collective_leader(cluster(), task)); })},
          {"worker_count", outcome_of([&] { return json(worker_count(cluster(), task.type)); })},
          {"coordination_leader", outcome_of([&] { return json(coordination_leader(cluster())); })}};
}

/// The properties that all resolvers have.
json facts_of(const ClusterResolver& resolver, const TaskOptions& query) {
  return {{"cluster", outcome_of([&] { return as_dict(resolver.cluster_spec()); })},
          {"task_type", or_null(resolver.task_type())},
          {"task_id", or_null(resolver.task_id())},
          {"rpc_layer", or_null(resolver.rpc_layer())},
          {"environment", resolver.environment()},
          {"num_accelerators", resolver.num_accelerators()},
          {"master", outcome_of([&] { return json(resolver.master(query)); })}};
}

std::map<std::string, int> counts(const json& args, const char* name) {
  return argument<std::map<std::string, int>>(args, name).value_or(std::map<std::string, int>());
}

SimpleClusterResolver simple_resolver(const json& cluster, const json& args) {
  golden::allow_only(args, {"master", "task_type", "task_id", "environment", "num_accelerators", "rpc_layer"}, "args");
  return SimpleClusterResolver(cluster_of(cluster),
                               {.task_type = argument<std::string>(args, "task_type"),
                                .task_id = argument<std::int64_t>(args, "task_id"),
                                .num_accelerators = counts(args, "num_accelerators"),
                                .rpc_layer = argument<std::string>(args, "rpc_layer"),
                                .environment = argument<std::string>(args, "environment").value_or(""),
                                .master = argument<std::string>(args, "master").value_or("")});
}

json simple(const Case& given) {
  given.allow_inputs({"kind", "cluster", "args", "master_args"});
  const auto resolver = simple_resolver(given["cluster"], given.data.value("args", json::object()));
  return facts_of(resolver, task_options(given.data.value("master_args", json::object())));
}

json united(const Case& given) {
  given.allow_inputs({"kind", "resolvers", "args", "master_args"});
  std::vector<std::shared_ptr<const ClusterResolver>> resolvers;
  for (json each : given["resolvers"]) {
    const json cluster = each.at("cluster");
    json args = each.value("args", json::object());
    each.erase("cluster");
    each.erase("args");
    args.update(each);  // arguments are next to the cluster or under "args"
    resolvers.push_back(std::make_shared<SimpleClusterResolver>(simple_resolver(cluster, args)));
  }
  const UnionClusterResolver resolver(std::move(resolvers), task_options(given.data.value("args", json::object())));
  return facts_of(resolver, task_options(given.data.value("master_args", json::object())));
}

json cluster_spec(const Case& given) {
  given.allow_inputs({"kind", "cluster", "address"});
  const ClusterSpec cluster = cluster_of(given["cluster"]);
  json num_tasks = json::object(), indices = json::object(), tasks = json::object();
  for (const std::string& job : cluster.jobs()) {
    num_tasks[job] = cluster.num_tasks(job);
    indices[job] = cluster.task_indices(job);
    tasks[job] = outcome_of([&] {
      json list = json::array();
      for (const auto& address : cluster.job_tasks(job)) list.push_back(or_null(address));
      return list;
    });
  }
  json result = {{"as_dict", as_dict(cluster)}, {"jobs", cluster.jobs()},  {"truthy", !cluster.empty()},
                 {"num_tasks", num_tasks},      {"task_indices", indices}, {"job_tasks", tasks}};
  if (given.has("address")) {
    result["task_address"] = outcome_of(
        [&] { return json(cluster.task_address(given["address"].at(0), given["address"].at(1).get<long long>())); });
  }
  return result;
}

SlurmOptions slurm_options(const json& args) {
  golden::allow_only(
      args, {"jobs", "port_base", "tasks_per_node", "gpus_per_node", "gpus_per_task", "auto_set_gpu", "rpc_layer"},
      "args");
  SlurmOptions options{.jobs = counts(args, "jobs"),
                       .port_base = argument<int>(args, "port_base").value_or(8888),
                       .gpus_per_node = argument<int>(args, "gpus_per_node"),
                       .gpus_per_task = argument<int>(args, "gpus_per_task"),
                       .rpc_layer = argument<std::string>(args, "rpc_layer").value_or("grpc")};
  if (const json tasks = args.value("tasks_per_node", json()); tasks.is_object()) {
    for (const auto& [host, count] : tasks.items()) options.tasks_of_hosts.emplace_back(host, count.get<int>());
  } else {
    options.tasks_per_node = argument<int>(args, "tasks_per_node");
  }
  return options;
}

/// Lockstep returns a task's GPUs by number and does not touch the variable, which TensorFlow sets by default.
std::string visible_gpus(const SlurmPlan& plan) {
  std::string list;
  for (int i = 0; i < plan.gpus_per_task; ++i) list += str(i ? "," : "", plan.first_gpu + i);
  return list;
}

json slurm(const Case& given) {
  given.allow_inputs({"kind", "env", "args", "master_args"});
  const json args = given.data.value("args", json::object());
  const json& env = given["env"];
  const auto variable = [&](const char* name) { return argument<std::string>(env, name); };
  return outcome_of([&] {
    const SlurmClusterResolver resolver(slurm_options(args), variable);
    json facts = facts_of(resolver, task_options(given.data.value("master_args", json::object())));
    facts["cuda_visible_devices"] = args.value("auto_set_gpu", true) ? json(visible_gpus(resolver.plan()))
                                                                     : env.value("CUDA_VISIBLE_DEVICES", json());
    return facts;
  });
}

}  // namespace

json run_resolver(const Case& given) {
  const std::string kind = given["kind"];
  return outcome_of([&]() -> json {
    if (kind == "cluster_fact") return cluster_fact(given);
    if (kind == "simple") return simple(given);
    if (kind == "union") return united(given);
    if (kind == "cluster_spec") return cluster_spec(given);
    if (kind == "slurm") return slurm(given);
    if (kind == "expand_hostlist") return {{"hosts", expand_hostlist(given["text"].get<std::string>())}};
    if (kind == "expand_tasks_per_node") return {{"tasks", expand_tasks_per_node(given["text"].get<std::string>())}};
    unknown_value("kind of resolver", kind);
  });
}

}  // namespace lockstep::golden_cluster
