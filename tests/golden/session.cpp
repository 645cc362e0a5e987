#include "tests/golden/session.h"

#include <c10/core/GradMode.h>

#include <map>
#include <tuple>

#include "lockstep/base/text.h"

namespace lockstep::golden {
namespace {

/// Long enough for a loaded machine, short enough to report which case hangs.
constexpr double kTimeoutSeconds = 60;

using Key = std::tuple<int, json, json, bool>;
std::map<Key, std::unique_ptr<MirroredStrategy>>& strategies() {
  static std::map<Key, std::unique_ptr<MirroredStrategy>> made;
  return made;
}

Strategy& cached_strategy(int replicas, const json& cross_device_ops, const json& num_packs, bool other) {
  auto& strategy = strategies()[{replicas, cross_device_ops, num_packs, other}];
  if (!strategy) {
    strategy = std::make_unique<MirroredStrategy>(
        MirroredOptions{.devices = cpus(replicas),
                        .cross_device_ops = read_cross_device_ops(cross_device_ops, num_packs),
                        .intra_op_threads = 1,
                        .communication = {.timeout_seconds = kTimeoutSeconds}});
  }
  return *strategy;
}

}  // namespace

std::shared_ptr<CrossDeviceOps> read_cross_device_ops(const json& name, const json& num_packs) {
  const int packs = num_packs.is_null() ? 1 : num_packs.get<int>();
  if (name.is_null()) return nullptr;
  if (name == "reduction_to_one_device") return std::make_shared<ReductionToOneDevice>();
  if (name == "hierarchical_copy") return std::make_shared<HierarchicalCopyAllReduce>(packs);
  if (name == "nccl") return std::make_shared<NcclAllReduce>(packs);
  unknown_value("cross_device_ops", name);
}

Strategy& strategy_for(const Case& given) {
  return cached_strategy(given.replicas(), given.data.value("cross_device_ops", json()),
                         given.data.value("num_packs", json()), false);
}

Strategy& other_strategy_for(const Case& given) { return cached_strategy(given.replicas(), json(), json(), true); }

void forget_strategies() { strategies().clear(); }

Destinations read_destinations(const json& destinations, Strategy& strategy, int value_components) {
  const auto on_first_devices = [](int components) {
    return Destinations(PerReplica<int>(std::vector<int>(static_cast<std::size_t>(components))));
  };
  if (destinations == "first") return strategy.devices().front();
  if (destinations == "last") return strategy.devices().back();
  if (destinations == "all") return on_first_devices(strategy.num_local_replicas());
  if (destinations == "value") return on_first_devices(value_components);
  unknown_value("destinations", destinations);
}

VariableOptions read_variable_options(const json& description) {
  VariableOptions options;
  if (description.contains("synchronization")) {
    options.synchronization = parse_synchronization(description.at("synchronization").get<std::string>());
  }
  if (description.contains("aggregation")) {
    options.aggregation = parse_aggregation(description.at("aggregation").get<std::string>());
  }
  if (const json trainable = description.value("trainable", json()); !trainable.is_null())
    options.trainable = trainable;
  if (const json name = description.value("name", json()); name.is_string()) options.name = name;
  return options;
}

Variable make_variable(const json& description, Strategy& strategy) {
  allow_only(description, {"initial", "synchronization", "aggregation", "trainable", "name", "components", "plain"},
             "a variable");
  const at::Tensor initial = read_tensor(description.at("initial"));
  if (description.value("plain", false)) return Variable(initial, read_variable_options(description));
  const auto scope = strategy.scope();
  Variable variable(initial, read_variable_options(description));
  if (description.contains("components")) set_components(variable, description.at("components"));
  return variable;
}

void set_components(Variable& variable, const json& components) {
  const c10::AutoGradMode no_grad(false);
  const auto& values = variable.values();
  if (components.size() != values.size()) unknown_value("list of components", components);
  for (std::size_t k = 0; k < values.size(); ++k) values[k].copy_(read_tensor(components[k]));
}

}  // namespace lockstep::golden
