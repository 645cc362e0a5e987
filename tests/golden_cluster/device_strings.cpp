#include "lockstep/base/device_name.h"
#include "tests/golden_cluster/cases.h"

namespace lockstep::golden_cluster {
namespace {

std::string text(const Case& given, const char* key) {
  return given.has(key) && !given[key].is_null() ? given[key].get<std::string>() : "";
}

json described(const DeviceName& name) {
  return {{"value", to_string(name)},
          {"job", or_null(name.job)},
          {"replica", or_null(name.replica)},
          {"task", or_null(name.task)},
          {"device_type", name.type.empty() ? json(nullptr) : json(name.type)},
          {"device_index", or_null(name.index)}};
}

json mirrored(const std::vector<std::string>& names) {
  json devices = json::array();
  for (const auto& device : plan_mirrored_devices(names)) devices.push_back(to_string(device));
  return {{"worker_devices", devices}, {"parameter_devices", devices}, {"num_replicas_in_sync", devices.size()}};
}

json value_of(const DeviceName& name) { return {{"value", to_string(name)}}; }

json call(const Case& given) {
  const std::string function = given["function"];
  const auto device = [&] { return text(given, "device"); };
  const auto current = [&] { return text(given, "current"); };
  if (function == "parse") return described(parse_device(device()));
  if (function == "canonicalize") return value_of(canonicalize(device(), text(given, "default")));
  if (function == "canonicalize_without_job_and_task") return value_of(canonicalize_without_job_and_task(device()));
  if (function == "host_for_device") return value_of(host_for(device()));
  if (function == "current") return value_of(resolve("", current()));
  if (function == "resolve") return value_of(resolve(device(), current()));
  if (function == "merge") return value_of(merge(text(given, "base"), device()));
  if (function == "local_devices") return {{"value", local_devices(given["num_gpus"].get<int>())}};
  if (function == "mirrored_devices") return mirrored(given["devices"].get<std::vector<std::string>>());
  unknown_value("function", function);
}

}  // namespace

json run_device_string(const Case& given) {
  given.allow_inputs({"function", "device", "default", "current", "base", "num_gpus", "devices"});
  return outcome_of([&] { return call(given); });
}

}  // namespace lockstep::golden_cluster
