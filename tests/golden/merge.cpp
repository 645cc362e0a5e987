#include <algorithm>
#include <mutex>

#include "lockstep/base/text.h"
#include "lockstep/values/select.h"
#include "tests/golden/areas.h"
#include "tests/golden/outcome.h"
#include "tests/golden/session.h"
#include "tests/golden/typed.h"

// Area merge_call: replicas meet, one function acts for all of them.
namespace lockstep::golden {
namespace {

/// The same nest with components in reverse order.
Nest reversed(const Nest& value) {
  if (value.is_distributed()) {
    return Nest::per_replica({value.items().rbegin(), value.items().rend()});
  }
  if (!value.is_container()) return value;
  Nest::Container mapped = value_as<Nest::Container>(value);
  for (Nest& item : mapped.items) item = reversed(item);
  return mapped;
}

Nest multiplied(const Nest& value, double factor) {
  if (value.is<double>()) return value_as<double>(value) * factor;
  if (value.is<std::int64_t>()) return static_cast<double>(value_as<std::int64_t>(value)) * factor;
  return value_as<at::Tensor>(value) * factor;
}

Nest reduced(Strategy& strategy, ReduceOp op, const Nest& value) {
  return map_typed(value, [&](const auto& typed) { return strategy.reduce(op, typed); });
}

constexpr const char* kMerges[] = {"reduce_sum",       "reduce_mean", "return_args",      "reverse", "first",
                                   "constant",         "none",        "count_components", "raise",   "describe_args",
                                   "nested_run_square"};

/// The result of a merge function for its arguments. They arrive as TensorFlow regroups them: values that are the same
/// on all replicas are plain.
Nest merge(const std::string& name, Strategy& strategy, const Nest& args) {
  if (args.size() == 0) throw UnknownForm("a merge function needs an argument");
  const Nest& value = args[0];
  if (name == "reduce_sum") return reduced(strategy, ReduceOp::Sum, value);
  if (name == "reduce_mean") return reduced(strategy, ReduceOp::Mean, value);
  if (name == "return_args") return value;
  if (name == "reverse") return reversed(value);
  if (name == "first") return select_component(value, 0);
  if (name == "constant") return 2.0;
  if (name == "count_components") return static_cast<std::int64_t>(strategy.local_results(value).size());
  if (name == "none") return Nest();
  if (name == "raise") throw DeliberateFailure("deliberate failure in merge_fn");
  if (name == "describe_args") {
    if (!value.is_distributed()) return "plain";
    return value_as<Nest::Components>(value).mirrored ? "Mirrored" : "PerReplica";
  }
  if (name == "nested_run_square") {
    const auto squares =
        strategy.run([](const Nest& x) -> Nest { return value_as<at::Tensor>(x) * value_as<at::Tensor>(x); }, value);
    return regroup(squares.values());
  }
  unknown_value("merge function", name);
}

/// Names are checked before anything runs: a replica may fail before it reaches an unknown one.
std::vector<std::string> read_merges(const json& names) {
  for (const json& name : names) {
    if (std::find(std::begin(kMerges), std::end(kMerges), name) == std::end(kMerges))
      unknown_value("merge function", name);
  }
  return names;
}

class MergeProgram {
 public:
  explicit MergeProgram(const Case& given)
      : strategy_(strategy_for(given)),
        merges_(read_merges(given["merges"])),
        raise_in_(given.data.value("raise_in_replica", -1)) {
    merges_of_others_ = given.has("merges_of_others") ? read_merges(given["merges_of_others"]) : merges_;
    if (merges_of_others_.size() != merges_.size()) unknown_value("merges_of_others", given["merges_of_others"]);
    if (given.has("merge_count")) merge_count_ = given["merge_count"].get<std::vector<std::size_t>>();
    if (const json& factor = given["after_multiply"]; !factor.is_null()) after_multiply_ = factor;
    const json& args = given["args"].at("per_replica");
    if (args.size() != static_cast<std::size_t>(given.replicas())) unknown_value("args", args);
    Reader reader;
    for (const json& args_of_one : args) args_.push_back(reader.nest({{"tuple", args_of_one}}));
  }

  PerReplica<Nest> run() {
    return strategy_.run([&](const Nest& args) { return run_replica(args); }, PerReplica<Nest>(args_));
  }

  const json& events() const { return events_; }

 private:
  Nest run_replica(Nest args) {
    ReplicaContext& replica = get_replica_context();
    const int id = replica.replica_id_in_sync_group();
    record(str("start:", id));
    if (id == raise_in_) throw DeliberateFailure(str("deliberate failure in replica ", id));
    const auto& names = id == 0 ? merges_ : merges_of_others_;
    const std::size_t count = merge_count_.empty() ? names.size() : merge_count_.at(static_cast<std::size_t>(id));
    for (std::size_t i = 0; i < count; ++i) {
      args = Nest::tuple({replica.merge_call(
          [&](Strategy& strategy, const PerReplica<Nest>& all) {
            const Nest merged = regroup(all.values());
            record("merge:" + names.at(i));
            return merge(names.at(i), strategy, merged);
          },
          args)});
      record(str("resume:", id));
    }
    if (args.size() == 0) throw UnknownForm("a replica without arguments");
    const Nest result = after_multiply_ ? multiplied(args[0], *after_multiply_) : args[0];
    record(str("end:", id));
    return result;
  }

  void record(const std::string& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }

  Strategy& strategy_;
  std::vector<std::string> merges_;
  std::vector<std::string> merges_of_others_;
  std::vector<std::size_t> merge_count_;
  std::optional<double> after_multiply_;
  int raise_in_;
  std::vector<Nest> args_;
  std::mutex mutex_;
  json events_ = json::array();
};

/// The events of each of the first `replicas` replicas, with the merges of all.
json events_per_replica(const json& events, int replicas) {
  json sorted = json::array();
  for (int k = 0; k < replicas; ++k) {
    json own = json::array();
    for (const std::string event : events) {
      if (event.starts_with("merge:") || event.ends_with(str(":", k))) own.push_back(event);
    }
    sorted.push_back(own);
  }
  return sorted;
}

}  // namespace

json run_merge_call(const Case& given) {
  given.allow_inputs(
      {"args", "merges", "merges_of_others", "merge_count", "after_multiply", "raise_in_replica", "record_events"});
  MergeProgram program(given);
  json result = outcome_of([&] { return write(program.run()); });
  if (given.data.value("record_events", false)) result["events"] = program.events();
  return result;
}

void compare_events_per_replica(const Case& given, json& expected, json& got) {
  if (!expected.contains("events") || !got.contains("events")) return;
  // TensorFlow never starts the replicas after one that fails; here they have started already.
  const int raises = given.data.value("raise_in_replica", given.replicas());
  const int compared = std::min(raises + 1, given.replicas());
  expected["events"] = events_per_replica(expected["events"], compared);
  got["events"] = events_per_replica(got["events"], compared);
}

}  // namespace lockstep::golden
