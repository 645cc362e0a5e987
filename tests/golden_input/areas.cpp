#include <initializer_list>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/data/distribute/ceil_split.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/pipeline_iterator.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/golden_input/cluster.h"
#include "tests/golden_input/dataset_builder.h"
#include "tests/golden_input/values.h"

namespace lockstep::golden_input {
namespace {

using namespace data;

MirroredStrategy& strategy_of(int replicas) {
  static std::map<int, std::unique_ptr<MirroredStrategy>> strategies;
  auto& strategy = strategies[replicas];
  if (!strategy) strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(replicas), .seed = 1});
  return *strategy;
}

AutoShardPolicy policy_in(const json& given) {
  const std::string name = given.value("policy", "AUTO");
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data, AutoShardPolicy::Off,
                            AutoShardPolicy::Hint}) {
    if (name == lockstep::to_string(policy)) return policy;
  }
  golden::unknown_value("policy", name);
}

const InputOptions kTensorFlow{.assignment = Assignment::TensorFlow};

InputOptions options_in(const json& given) {
  InputOptions options = kTensorFlow;
  if (!given.contains("input_options")) return options;
  const json& fields = given["input_options"];
  golden::allow_only(fields,
                     {"fetch_to_device", "replication_mode", "place_dataset_on_device", "per_replica_buffer_size"},
                     "input_options");
  options.fetch_to_device = fields.value("fetch_to_device", options.fetch_to_device);
  options.place_dataset_on_device = fields.value("place_dataset_on_device", options.place_dataset_on_device);
  options.per_replica_buffer_size = fields.value("per_replica_buffer_size", options.per_replica_buffer_size);
  const std::string mode = fields.value("replication_mode", "PER_WORKER");
  if (mode == "PER_REPLICA")
    options.replication_mode = ReplicationMode::PerReplica;
  else if (mode != "PER_WORKER")
    golden::unknown_value("replication_mode", mode);
  return options;
}

StagePtr with_policy(StagePtr dataset, AutoShardPolicy policy) {
  return make_with_options(std::move(dataset), DatasetOptions{.auto_shard_policy = policy});
}

json write_spec(const DistributedSpec& spec) {
  return {{"per_replica", spec.per_replica}, {"components", write_components(spec.element)}};
}

/// All elements of a stream, with the error that ended it, if any.
json elements_of(const StagePtr& stage, std::optional<std::int64_t> max_elements = std::nullopt) {
  json elements = json::array();
  json result;
  try {
    PipelineIterator iterator(stage, IterationContext{});
    Element element;
    while ((!max_elements || std::ssize(elements) < *max_elements) && iterator.next(element))
      elements.push_back(write(element));
  } catch (...) {
    result = current_error();
  }
  result["elements"] = std::move(elements);
  result["shapes"] = write_shapes(stage->element_spec());
  return result;
}

/// The outcome of a distributed dataset's workers.
json results_of(const std::vector<DistributedInput>& inputs, const Case& given) {
  std::optional<int> max_steps;
  if (given.has("max_steps")) max_steps = given["max_steps"].get<int>();
  json result = {{"partial_batch_handling", inputs[0].partial_steps}, {"element_spec", write_spec(inputs[0].spec())}};
  result["cardinality"] = write(inputs[0].cardinality);
  const std::vector<WorkerRun> runs = run_workers(inputs, max_steps);
  json steps = json::array(), failing = json::array();
  std::size_t after = runs[0].steps.size();
  for (std::size_t w = 0; w < runs.size(); ++w) {
    steps.push_back(runs[w].steps);
    if (!runs[w].error) continue;
    failing.push_back(w);
    after = std::min(after, runs[w].steps.size());
    result["error"] = (*runs[w].error)["error"];
    result["text"] = (*runs[w].error)["text"];
  }
  if (!failing.empty()) {
    // Steps that the others took without the failed one do not count.
    for (json& worker : steps) {
      while (worker.size() > after) worker.erase(worker.size() - 1);
    }
    result["failing_workers"] = failing;
    result["after_steps"] = after;
  }
  result["workers"] = steps;
  return result;
}

std::vector<DistributedInput> plan_workers(const Case& given, const StagePtr& dataset) {
  std::vector<DistributedInput> inputs;
  for (int w = 0; w < given.workers(); ++w) {
    const InputPlan plan = plan_input(dataset, policy_of(*dataset), Assignment::TensorFlow,
                                      {given.workers(), given.replicas_per_worker(), w}, TooFew::FailsWhereSeen);
    inputs.push_back(distributed_by_plan(plan));
  }
  return inputs;
}

/// Too few files are reported before the first step, on every worker.
void expect_error_at_once(const Case& given, const StagePtr& dataset) {
  for (int w = 0; w < given.workers(); ++w) {
    bool thrown = false;
    try {
      plan_input(dataset, policy_of(*dataset), Assignment::TensorFlow,
                 {given.workers(), given.replicas_per_worker(), w});
    } catch (const InvalidArgument&) {
      thrown = true;
    }
    if (!thrown) throw std::runtime_error(str("worker ", w, " does not report at once that there are too few files"));
  }
}

json run_distribute_dataset(const Case& given) {
  const StagePtr dataset = with_policy(build_dataset(given["dataset"]), policy_in(given.data));
  const InputOptions options = options_in(given.data);
  if (given.workers() == 1)
    return results_of({*distribute_stage(strategy_of(given.replicas_per_worker()), dataset, options)}, given);
  check_for_dataset(options);
  if (given.expect().contains("failing_workers") && given.expect()["error"] == "InvalidArgument") {
    expect_error_at_once(given, dataset);
  }
  return results_of(plan_workers(given, dataset), given);
}

std::vector<StagePtr> build_for(const json& dataset, const std::vector<InputContext>& contexts) {
  std::vector<StagePtr> pipelines;
  for (const InputContext& context : contexts) pipelines.push_back(build_dataset(dataset, context));
  return pipelines;
}

json run_from_function(const Case& given) {
  const InputOptions options = options_in(given.data);
  const int workers = given.workers(), replicas = given.replicas_per_worker();
  if (workers == 1) {
    Strategy& strategy = strategy_of(replicas);
    const auto pipelines = build_for(given["dataset"], contexts_for_function(strategy, options));
    return results_of({*distribute_made(strategy, pipelines, options)}, given);
  }
  check_for_function(options, workers);
  std::vector<DistributedInput> inputs;
  json cardinalities = json::array();
  for (int w = 0; w < workers; ++w) {
    const StagePtr pipeline = build_dataset(given["dataset"], {workers, w, workers * replicas});
    inputs.push_back(distributed_pipelines({pipeline}, {workers, replicas, w}, false));
    cardinalities.push_back(write(pipeline->cardinality()));
  }
  json result = results_of(inputs, given);
  if (given.expect().contains("cardinality") && given.expect()["cardinality"].is_array())
    result["cardinality"] = cardinalities;
  return result;
}

json run_rebatch_sizes(const Case& given) {
  json sizes = json::array();
  for (int w = 0; w < given.workers(); ++w) {
    sizes.push_back(balanced_sizes(given["global_batch_size"], {given.workers(), given.replicas_per_worker(), w}));
  }
  return {{"sizes", sizes}};
}

json run_rebatch(const Case& given) {
  const json& sizes = given["sizes"];
  return elements_of(make_rebatch(
      build_dataset(given["dataset"]),
      sizes.is_array() ? sizes.get<std::vector<std::int64_t>>() : std::vector<std::int64_t>{sizes.get<std::int64_t>()},
      given["drop_remainder"]));
}

json run_legacy_rebatch(const Case& given) {
  return elements_of(make_ceil_split(build_dataset(given["dataset"]), given["num_replicas"]));
}

json run_compute_batch_size(const Case& given) {
  const StagePtr dataset = build_dataset(given["dataset"]);
  return {{"batch_size", global_batch_size_of(*dataset)},
          {"static_shapes", write_shapes(dataset->element_spec())},
          {"cardinality", write(dataset->cardinality())}};
}

json run_shard(const Case& given) {
  StagePtr dataset = build_dataset(given["dataset"]);
  const int workers = given["num_workers"], index = given["index"];
  std::optional<std::int64_t> max_elements;
  if (given.has("max_elements")) max_elements = given["max_elements"].get<std::int64_t>();
  if (given["kind"] == "shard") return elements_of(make_shard(dataset, workers, index), max_elements);
  if (given["kind"] != "auto_shard") golden::unknown_value("kind", given["kind"]);
  // The stages that distributing adds to the dataset: it is split before it is sharded.
  const auto split = [&](const StagePtr& input, bool by_rows) {
    if (given.has("legacy_rebatch")) return make_ceil_split(input, given["legacy_rebatch"]);
    if (!given.has("rebatch")) return input;
    return by_rows ? make_ceil_split(input, given["num_replicas"])
                   : make_rebatch(input, given["rebatch"].get<std::vector<std::int64_t>>());
  };
  const AutoShardPolicy policy = policy_in(given.data);
  const ShardPlan plan = plan_shards(dataset, policy, {workers, 1, index}, TooFew::FailsWhereSeen);
  const bool by_rows = plan.by == AutoShardPolicy::Data;
  StagePtr stream = split(plan.pipeline, by_rows);
  if (by_rows) stream = make_required_shard(stream, workers, index, TooFew::FailsWhereSeen);
  return elements_of(stream, max_elements);
}

json run_numpy(const Case& given) {
  const json& arrays = given["arrays"];
  golden::allow_only(arrays, {"array", "tuple", "dict"}, "arrays");
  const Element element =
      read_element(arrays.contains("array") ? arrays["array"] : arrays, given.data.value("dtype", ""));
  const StagePtr dataset = apply_ops(make_slices(element), given["ops"]);
  return results_of({*distribute_stage(strategy_of(given.replicas_per_worker()), dataset, kTensorFlow)}, given);
}

json run_input_context(const Case& given) {
  const InputContext context{given["num_input_pipelines"], given["input_pipeline_id"], given["num_replicas_in_sync"]};
  if (given["what"] == "str") return {{"value", "tf.distribute." + lockstep::to_string(context)}};
  if (given["what"] != "get_per_replica_batch_size") golden::unknown_value("what", given["what"]);
  return {{"value", context.get_per_replica_batch_size(given["global_batch_size"])}};
}

// ---- iterators of one worker

json write_values(const std::optional<DistributedCursor::Values>& values) {
  if (!values) return nullptr;
  json step = json::array();
  for (const Element& value : *values) step.push_back(write(value));
  return step;
}

DistributedInputPtr iterator_input(const Case& given) {
  Strategy& strategy = strategy_of(given.replicas_per_worker());
  if (given.data.value("from_function", false)) {
    return distribute_made(strategy, build_for(given["dataset"], contexts_for_function(strategy, {})), kTensorFlow);
  }
  return distribute_stage(strategy, with_policy(build_dataset(given["dataset"]), policy_in(given.data)), kTensorFlow);
}

json all_steps(const DistributedInputPtr& input) {
  DistributedCursor cursor(input);
  json steps = json::array();
  while (auto values = cursor.next()) steps.push_back(write_values(values));
  return steps;
}

json after_per_replica(const Case& given) {
  Strategy& strategy = strategy_of(given.replicas_per_worker());
  const auto steps = [&](const InputOptions& options) {
    return all_steps(
        distribute_made(strategy, build_for(given["dataset"], contexts_for_function(strategy, options)), options));
  };
  json result;
  result["before"] = steps(kTensorFlow);
  result["with_option"] = steps({.fetch_to_device = false,
                                 .replication_mode = ReplicationMode::PerReplica,
                                 .assignment = Assignment::TensorFlow});
  result["after"] = steps(kTensorFlow);
  return result;
}

json reduced_steps(const Case& given, const DistributedInputPtr& input) {
  Strategy& strategy = strategy_of(given.replicas_per_worker());
  DistributedCursor cursor(input);
  json steps = json::array();
  while (auto values = cursor.next()) {
    const auto step =
        PerReplica<at::Tensor>::generate(values->size(), [&](std::size_t k) { return (*values)[k].tensor(0); });
    const Axis axis = given["axis"].is_null() ? Axis() : Axis(given["axis"].get<std::int64_t>());
    steps.push_back(strategy.reduce(parse_reduce_op(given["op"].get<std::string>()), step, axis).item().toDouble());
  }
  return steps;
}

json run_iterator(const Case& given) {
  const std::string what = given["what"];
  if (what == "plain_after_per_replica") return after_per_replica(given);
  const DistributedInputPtr input = iterator_input(given);
  DistributedCursor cursor(input);
  json result;
  if (what == "next_calls" || what == "get_next_calls" || what == "next_in_function") {
    json calls = json::array();
    for (int i = 0; i < given["calls"].get<int>(); ++i) {
      const json step = write_values(cursor.next());
      calls.push_back(!step.is_null() ? step : json(what == "next_calls" ? "StopIteration" : "OutOfRange"));
    }
    result["calls"] = calls;
    result["static_shapes"] = write_shapes(input->spec().element);
  } else if (what == "get_next_as_optional") {
    json calls = json::array();
    for (int i = 0; i < given["calls"].get<int>(); ++i) calls.push_back(write_values(cursor.next_as_optional()));
    result["calls"] = calls;
  } else if (what == "optional_in_function") {
    result["first"] = write_values(cursor.next_as_optional());
    result["static_shapes"] = write_shapes(input->optional_spec().element);
  } else if (what == "loop_in_function") {
    std::int64_t steps = 0, sum = 0;
    while (auto values = cursor.next_as_optional()) {
      ++steps;
      for (const Element& value : *values) sum += value.tensor(0).sum().item().toLong();
    }
    result = {{"steps", steps}, {"sum", sum}};
    result["static_shapes_in_loop"] = write_shapes(input->optional_spec().element);
  } else if (what == "two_iterators") {
    DistributedCursor second(input);
    json calls = json::array();
    for (const char which : given["order"].get<std::string>()) {
      const json step = write_values(which == 'a' ? cursor.next() : second.next());
      calls.push_back(step.is_null() ? json("StopIteration") : step);
    }
    result["calls"] = calls;
  } else if (what == "epochs") {
    json epochs = json::array();
    for (int e = 0; e < given["epochs"].get<int>(); ++e) epochs.push_back(all_steps(input));
    result["epochs"] = epochs;
  } else if (what == "reduce_each_step") {
    result["steps"] = reduced_steps(given, input);
  } else if (what == "local_batch_sizes") {
    json steps = json::array();
    while (auto values = cursor.next()) {
      json sizes = json::array();
      for (const Element& value : *values) sizes.push_back(value.tensor(0).size(0));
      steps.push_back(sizes);
    }
    result["steps"] = steps;
  } else if (what == "enumerate_eager" || what == "enumerate_in_function") {
    json indices = json::array();
    while (cursor.next()) indices.push_back(indices.size());
    result["indices"] = indices;
  } else if (what == "loop_with_break_in_function") {
    result["first"] = write_values(cursor.next());
  } else {
    golden::unknown_value("what", what);
  }
  return result;
}

}  // namespace

json run_area(const Case& given) {
  // `inputs`: the allowed inputs of the area's cases; anything else is an unknown form.
  const auto run = [&](json (*runner)(const Case&), std::initializer_list<const char*> inputs) {
    json rest = given.data;
    for (const char* common : {"id", "area", "quirk", "verified", "expect"}) rest.erase(common);
    golden::allow_only(rest, inputs, "a case of area " + given.area());
    return runner(given);
  };
  const std::string area = given.area();
  if (area == "compute_batch_size") return run(run_compute_batch_size, {"dataset"});
  if (area == "distribute_dataset" || area == "from_function") {
    return run(area == "from_function" ? run_from_function : run_distribute_dataset,
               {"dataset", "policy", "input_options", "max_steps", "workers", "replicas_per_worker"});
  }
  if (area == "input_context") {
    return run(run_input_context,
               {"what", "num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync", "global_batch_size"});
  }
  if (area == "iterator") {
    return run(run_iterator, {"what", "dataset", "policy", "from_function", "calls", "epochs", "op", "axis", "order",
                              "replicas_per_worker"});
  }
  if (area == "legacy_rebatch") return run(run_legacy_rebatch, {"dataset", "num_replicas"});
  if (area == "numpy") return run(run_numpy, {"arrays", "ops", "dtype", "max_steps", "replicas_per_worker"});
  if (area == "rebatch") return run(run_rebatch, {"dataset", "sizes", "drop_remainder"});
  if (area == "rebatch_sizes") return run(run_rebatch_sizes, {"global_batch_size", "workers", "replicas_per_worker"});
  if (area == "shard") {
    return run(run_shard, {"dataset", "num_workers", "index", "kind", "policy", "rebatch", "legacy_rebatch",
                           "num_replicas", "max_elements"});
  }
  golden::unknown_value("area", area);
}

}  // namespace lockstep::golden_input
