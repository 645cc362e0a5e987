#include "tests/golden/areas.h"
#include "tests/golden/session.h"

// Area create: the properties of new variables.
namespace lockstep::golden {
namespace {

/// TensorFlow's class for such a variable.
std::string kind_of(const Variable& variable) {
  if (!variable.is_distributed()) return "Variable";
  return variable.synchronization() == Synchronization::OnRead ? "SyncOnReadVariable" : "MirroredVariable";
}

json describe(const Variable& variable, bool with_names) {
  json described = {{"kind", kind_of(variable)},
                    {"trainable", variable.trainable()},
                    {"synchronization", to_string(variable.synchronization())},
                    {"aggregation", to_string(variable.aggregation())},
                    {"components", write_each(variable.values())}};
  if (with_names) {
    // In TensorFlow the name of a variable is the name of its first output.
    for (std::size_t k = 0; k < variable.values().size(); ++k) {
      described["component_names"].push_back(variable.component_name(k) + ":0");
    }
  }
  return described;
}

std::vector<std::string> names_of(const json& name, int replicas) {
  if (name.is_object()) return name.at("per_replica");
  return std::vector<std::string>(static_cast<std::size_t>(replicas), name.is_null() ? "" : name.get<std::string>());
}

Variable make_in_replicas(const json& description, Strategy& strategy) {
  const int replicas = strategy.num_local_replicas();
  const auto options = read_variable_options(description);
  std::vector<at::Tensor> initial;
  for (const Nest& value : Reader().for_each_replica(description.at("initial"), replicas)) {
    initial.push_back(value_as<at::Tensor>(value));
  }
  const PerReplica<std::string> names(names_of(description.value("name", json()), replicas));
  const auto made = strategy.run(
      [&](const at::Tensor& mine, const std::string& name) {
        auto my_options = options;
        my_options.name = name;
        return Variable(mine, my_options);
      },
      PerReplica<at::Tensor>(initial), names);
  for (const Variable& variable : made) {
    if (!variable.is_same(made[0])) throw std::runtime_error("replicas made different variables");
  }
  return made[0];
}

}  // namespace

json run_create(const Case& given) {
  if (given.has("method")) {
    given.allow_inputs({"method", "name"});
    if (given["method"] != "canonical_name") unknown_value("method", given["method"]);
    const json& name = given["name"];
    return {{"str", canonical_variable_name(name.is_null() ? "" : name.get<std::string>())}};
  }
  given.allow_inputs({"context", "variable"});
  const json& context = given["context"];
  const json& description = given["variable"];
  Strategy& strategy = strategy_for(given);
  const bool with_names = given.expect().contains("component_names");
  if (context == "replica") {
    allow_only(description, {"initial", "synchronization", "aggregation", "trainable", "name"}, "a variable");
    return describe(make_in_replicas(description, strategy), with_names);
  }
  if (context != "cross") unknown_value("context", context);
  return describe(make_variable(description, strategy), with_names);
}

}  // namespace lockstep::golden
