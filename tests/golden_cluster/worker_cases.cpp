#include "tests/golden_cluster/worker_cases.h"

#include <ATen/core/grad_mode.h>

#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/data/distribute/distributed_cursor.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/data/stages/stages.h"
#include "lockstep/strategy/context.h"
#include "tests/golden_input/dataset_builder.h"
#include "tests/golden_input/values.h"

namespace lockstep::golden_cluster {
namespace {

using data::DistributedCursor;
using data::Element;
using golden::Case;
using golden::json;
using golden_input::write;
using Worker = MultiWorkerMirroredStrategy;
using Tensors = PerReplica<at::Tensor>;

// ---- Values

at::Tensor read_value(const Case& given, const json& value) {
  const std::string dtype = given.data.value("dtype", "float32");
  if (dtype == "int32") return golden_input::read_tensor(value, "int64").to(at::kInt);
  if (dtype == "float64") return golden_input::read_tensor(value, "float32").to(at::kDouble);
  return golden_input::read_tensor(value, dtype);
}

/// The case's value for this worker.
const json& own(const Worker& worker, const Case& given, const char* key) {
  return given[key].at(static_cast<std::size_t>(worker.worker_id()));
}
at::Tensor own_value(const Worker& worker, const Case& given, const char* key = "values") {
  return read_value(given, own(worker, given, key));
}
Tensors own_values(const Worker& worker, const Case& given) {
  const json& values = own(worker, given, "values");
  return Tensors::generate(values.size(), [&](std::size_t k) { return read_value(given, values[k]); });
}

json written(const at::Tensor& tensor) { return write(Element::of(tensor.detach())); }
template <class Values>
json written_all(const Values& values) {
  json list = json::array();
  for (const at::Tensor& value : values) list.push_back(written(value));
  return list;
}
json written_step(const std::optional<DistributedCursor::Values>& values) {
  if (!values) return nullptr;
  json step = json::array();
  for (const Element& value : *values) step.push_back(write(value));
  return step;
}

ReduceOp op_of(const Case& given, const char* key = "op") { return parse_reduce_op(given[key].get<std::string>()); }
Axis axis_of(const Case& given) {
  return given.data.value("axis", json()).is_null() ? Axis() : Axis(given["axis"].get<std::int64_t>());
}

Variable make_variable(Worker& worker, const Case& given, const at::Tensor& initial,
                       const std::string& synchronization = "AUTO") {
  return worker.make_variable(
      initial, {.synchronization = parse_synchronization(given.data.value("synchronization", synchronization)),
                .aggregation = parse_aggregation(given.data.value("aggregation", "NONE"))});
}

// ---- Reductions and collectives

json run_reduce(Worker& worker, const Case& given) {
  if (given.has("op_plain"))
    return {{"value", written(worker.reduce(op_of(given, "op_plain"), own_value(worker, given)))}};
  return {{"value", written(worker.reduce(op_of(given), own_values(worker, given), axis_of(given)))}};
}

json run_reduce_to(Worker& worker, const Case& given) {
  const Tensors values = own_values(worker, given);
  return {{"local", written_all(worker.extended().reduce_to(op_of(given), values, values))}};
}

json run_broadcast_to(Worker& worker, const Case& given) {
  const at::Tensor value = own_value(worker, given);
  const auto everywhere = Tensors::generate(worker.devices().size(), [&](std::size_t) { return value; });
  return {{"local", written_all(worker.extended().broadcast_to(value, everywhere))}};
}

json run_all_reduce(Worker& worker, const Case& given) {
  const auto step = [op = op_of(given)](const at::Tensor& mine) { return get_replica_context().all_reduce(op, mine); };
  return {{"local", written_all(worker.run(step, own_values(worker, given)))}};
}

json run_gather(Worker& worker, const Case& given) {
  return {{"value", written(worker.gather(own_values(worker, given), given["axis"].get<std::int64_t>()))}};
}

json run_all_gather(Worker& worker, const Case& given) {
  const auto step = [axis = given["axis"].get<std::int64_t>()](const at::Tensor& mine) {
    return get_replica_context().all_gather(mine, axis);
  };
  return {{"local", written_all(worker.run(step, own_values(worker, given)))}};
}

json run_merge_call(Worker& worker, const Case& given) {
  json calls = json::array();
  const auto merge = [&](Strategy&, const Tensors& all) { calls.push_back(written_all(all)); };
  worker.run([&](const at::Tensor& mine) { get_replica_context().merge_call(merge, mine); }, own_values(worker, given));
  return {{"merge_calls", calls}};
}

// ---- Variables

json run_variable_init(Worker& worker, const Case& given) {
  return {{"local", written_all(make_variable(worker, given, own_value(worker, given)).values())}};
}

json run_sync_on_read(Worker& worker, const Case& given) {
  Variable variable = make_variable(worker, given, own_value(worker, given, "initial"), "ON_READ");
  worker.run([&](const at::Tensor& mine) { variable.assign_add(mine); }, own_values(worker, given));
  json result = {{"local", written_all(variable.values())}};
  result["cross_replica_read"] = written(variable.read());
  return result;
}

json run_mirrored_assign(Worker& worker, const Case& given) {
  Variable variable = make_variable(worker, given, own_value(worker, given, "initial"));
  const std::string how = given["how"];
  if (how != "assign" && how != "assign_add" && how != "assign_sub") golden::unknown_value("how", how);
  const auto step = [&](const at::Tensor& mine) {
    if (how == "assign") return variable.assign(mine, ReadBack::No);
    return how == "assign_add" ? variable.assign_add(mine, ReadBack::No) : variable.assign_sub(mine, ReadBack::No);
  };
  worker.run(step, own_values(worker, given));
  return {{"local", written_all(variable.values())}};
}

json run_cross_assign(Worker& worker, const Case& given) {
  const at::Tensor value = own_value(worker, given);
  Variable variable = make_variable(worker, given, value.new_zeros(value.sizes()));
  variable.assign(value);
  return {{"local", written_all(variable.values())}};
}

json run_update(Worker& worker, const Case& given) {
  const at::Tensor value = own_value(worker, given);
  const Variable variable = make_variable(worker, given, value.new_ones(value.sizes()));
  worker.extended().update(
      variable, [](at::Tensor component, const at::Tensor& more) { component.add_(more); }, value);
  return {{"local", written_all(variable.values())}};
}

// ---- Input

data::StagePtr with_policy(data::StagePtr dataset, const Case& given) {
  const std::string name = given.data.value("policy", "AUTO");
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data, AutoShardPolicy::Off,
                            AutoShardPolicy::Hint}) {
    if (name == to_string(policy)) return make_with_options(std::move(dataset), {.auto_shard_policy = policy});
  }
  golden::unknown_value("policy", name);
}

DistributedCursor distributed(Worker& worker, const Case& given, const data::StagePtr& dataset) {
  return DistributedCursor(
      distribute_stage(worker, with_policy(dataset, given), {.assignment = Assignment::TensorFlow}));
}
DistributedCursor distributed(Worker& worker, const Case& given) {
  return distributed(worker, given, golden_input::build_dataset(given["dataset"]));
}

/// A component of the replicas' values in a step.
Tensors component_of(const DistributedCursor::Values& values, std::size_t component = 0) {
  return Tensors::generate(values.size(), [&](std::size_t k) { return values[k].tensor(component); });
}

json all_steps(DistributedCursor cursor) {
  json steps = json::array();
  while (auto values = cursor.next()) steps.push_back(written_step(values));
  return {{"steps", steps}};
}

json run_numpy(Worker& worker, const Case& given) {
  const auto rows = data::make_slices(golden_input::read_element(given["array"]));
  const json ops = json::array({json::array({"batch", given["batch"]})});
  return all_steps(distributed(worker, given, golden_input::apply_ops(rows, ops)));
}

json run_reduce_each_step(Worker& worker, const Case& given) {
  DistributedCursor cursor = distributed(worker, given);
  json steps = json::array();
  while (auto values = cursor.next())
    steps.push_back(written(worker.reduce(op_of(given), component_of(*values), axis_of(given))));
  return {{"steps", steps}};
}

json run_loop_sum(Worker& worker, const Case& given) {
  Variable sum = worker.make_variable(golden_input::read_tensor(0, "int64"),
                                      {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  DistributedCursor cursor = distributed(worker, given);
  int steps = 0;
  for (; auto values = cursor.next(); ++steps)
    worker.run([&](const at::Tensor& mine) { sum.assign_add(mine.sum()); }, component_of(*values));
  return {{"steps", steps}, {"total", written(sum.read())}, {"local", written_all(sum.values())}};
}

json run_optional(Worker& worker, const Case& given) {
  DistributedCursor cursor = distributed(worker, given);
  json calls = json::array();
  for (int i = 0; i < given["calls"].get<int>(); ++i) calls.push_back(written_step(cursor.next_as_optional()));
  return {{"calls", calls}};
}

json run_per_replica_mode(Worker& worker, const Case& given) {
  const InputOptions options{.fetch_to_device = false, .replication_mode = ReplicationMode::PerReplica};
  if (given["api"] == "dataset") {
    distribute_stage(worker, data::make_range(0, 4), options);
  } else if (given["api"] == "function") {
    data::contexts_for_function(worker, options);
  } else {
    golden::unknown_value("api", given["api"]);
  }
  return json::object();
}

json run_input_context(Worker& worker, const Case&) {
  json calls = json::array();
  for (const InputContext& context : data::contexts_for_function(worker, {})) {
    calls.push_back({context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync,
                     "tf.distribute." + to_string(context)});
  }
  return {{"calls", calls}};
}

json run_value_context(Worker& worker, const Case&) {
  json local = json::array();
  const auto contexts = worker.values_from_function([](const ValueContext& context) { return context; });
  for (const ValueContext& each : contexts) local.push_back({each.replica_id_in_sync_group, each.num_replicas_in_sync});
  return {{"local", local}};
}

/// Linear regression by hand: weights start as (1, -1), and errors are squared.
json run_sgd(Worker& worker, const Case& given) {
  const json rows = {{"tuple", {given["x"], given["y"]}}};
  const json ops = json::array({json::array({"batch", given["global_batch_size"]})});
  DistributedCursor cursor = distributed(
      worker, given, golden_input::apply_ops(data::make_slices(golden_input::read_element(rows, "float32")), ops));
  Variable weights = worker.make_variable(golden_input::read_tensor({1.0, -1.0}), {.aggregation = Aggregation::Sum});
  const auto batch = given["global_batch_size"].get<double>();
  const auto rate = given["lr"].get<double>();
  const auto step = [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor loss = x.mv(weights.read()).sub(y).square().sum().div(batch);
    weights.handle().mutable_grad().reset();
    loss.backward();
    weights.assign_sub(weights.handle().grad().mul(rate));
    return loss.detach();
  };
  json losses = json::array();
  while (auto values = cursor.next()) {
    const auto each = worker.run(step, component_of(*values, 0), component_of(*values, 1));
    losses.push_back(written(worker.reduce(ReduceOp::Sum, each)));
  }
  return {{"losses", losses}, {"local", written_all(weights.values())}};
}

// ---- The worker itself

json run_facts(Worker& worker, const Case&) {
  json ids = json::array(), counts = json::array();
  const auto seen = worker.run([] {
    const auto& replica = get_replica_context();
    return std::pair(replica.replica_id_in_sync_group(), replica.num_replicas_in_sync());
  });
  for (const auto& [id, count] : seen) {
    ids.push_back(id);
    counts.push_back(count);
  }
  const StrategyExtended& extended = worker.extended();
  const ClusterDescription& cluster = worker.cluster();
  return {{"num_replicas_in_sync", worker.num_replicas_in_sync()},
          {"worker_devices", extended.worker_devices()},
          {"parameter_devices", extended.parameter_devices()},
          {"replica_ids", ids},
          {"ctx_num_replicas", counts},
          {"local_results", worker.local_results(seen).size()},
          {"should_checkpoint", extended.should_checkpoint()},
          {"should_save_summary", extended.should_save_summary()},
          {"experimental_between_graph", extended.experimental_between_graph()},
          {"experimental_should_init", extended.experimental_should_init()},
          {"is_chief", worker.is_chief()},
          {"id_in_cluster", cluster.id},
          {"task_type", cluster.self().task_type},
          {"task_id", cluster.self().task_index},
          {"in_multi_worker_mode", worker.num_workers() > 1}};
}

struct Program {
  const char* name;
  json (*run)(Worker&, const Case&);
  std::initializer_list<const char*> inputs;
};

const Program kPrograms[] = {
    {"all_gather", run_all_gather, {"values", "axis"}},
    {"all_reduce", run_all_reduce, {"values", "op", "in_function"}},
    {"broadcast_to", run_broadcast_to, {"values"}},
    {"cross_replica_assign", run_cross_assign, {"values"}},
    {"dataset_loop_sum", run_loop_sum, {"dataset", "policy"}},
    {"facts", run_facts, {}},
    {"gather", run_gather, {"values", "axis"}},
    {"get_next_as_optional", run_optional, {"dataset", "policy", "calls"}},
    {"input_context", run_input_context, {}},
    {"merge_call", run_merge_call, {"values"}},
    {"mirrored_assign_in_replica", run_mirrored_assign, {"values", "initial", "aggregation", "how"}},
    {"numpy", run_numpy, {"array", "batch"}},
    {"per_replica_mode", run_per_replica_mode, {"api"}},
    {"reduce", run_reduce, {"values", "op", "op_plain", "axis", "dtype"}},
    {"reduce_each_step", run_reduce_each_step, {"dataset", "policy", "op", "axis"}},
    {"reduce_to", run_reduce_to, {"values", "op"}},
    {"sgd", run_sgd, {"x", "y", "lr", "global_batch_size"}},
    {"sync_on_read", run_sync_on_read, {"values", "initial", "aggregation"}},
    {"update", run_update, {"values"}},
    {"value_context", run_value_context, {}},
    {"variable_init", run_variable_init, {"values", "synchronization", "aggregation", "dtype"}},
};

}  // namespace

json run_as_worker(Worker& worker, const Case& given) {
  const std::string name = given["program"];
  for (const Program& program : kPrograms) {
    if (name != program.name) continue;
    json inputs = given.data;
    for (const char* common :
         {"id", "area", "quirk", "verified", "expect", "cluster", "workers", "replicas_per_worker", "program"}) {
      inputs.erase(common);
    }
    golden::allow_only(inputs, program.inputs, "a case of program " + name);
    return golden_input::outcome_of([&] { return program.run(worker, given); });
  }
  golden::unknown_value("program", name);
}

}  // namespace lockstep::golden_cluster
