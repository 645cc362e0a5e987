#include <algorithm>
#include <regex>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/slurm_resolver.h"
#include "tests/golden_cluster/cases.h"

namespace lockstep::golden_cluster {
namespace {

const json kRefused = {{"error", "ValueError"}};

bool is_error(const json& expected) { return expected.is_object() && expected.contains("error"); }

json with(json expected, const std::string& key, const json& value) {
  if (expected.contains(key)) expected[key] = value;
  return expected;
}

json member(const json& object, const char* key) { return object.is_object() ? object.value(key, json()) : json(); }

bool is_text_or_null(const json& value) { return value.is_string() || value.is_null(); }

/// An argument that C++'s types do not allow.
bool has_untyped_arguments(const json& data) {
  for (const char* name : {"args", "master_args"}) {
    const json arguments = data.value(name, json::object());
    for (const char* text : {"task_type", "rpc_layer", "environment", "master"}) {
      if (!is_text_or_null(member(arguments, text))) return true;
    }
    for (const char* number : {"task_id", "port_base", "gpus_per_node", "gpus_per_task", "tasks_per_node"}) {
      const json value = member(arguments, number);
      if (!value.is_null() && !value.is_number_integer() && !value.is_object()) return true;
    }
  }
  return false;
}

/// Whether a cluster passes TensorFlow's checks although its tasks could never find each other.
bool cannot_meet(const json& config, const std::string& own_type, const json& own_index) {
  static const std::regex kAddress(R"((\[[0-9A-Za-z:.%_-]+\]|[0-9A-Za-z._-]+):0*[1-9][0-9]{0,4})");
  if (own_index.is_number() && own_index < 0) return true;
  std::set<std::string> addresses;
  for (const auto& [job, tasks] : config.at("cluster").items()) {
    if (job == "ps" || (job == "evaluator") != (own_type == "evaluator")) continue;
    if (tasks.empty()) return true;
    for (const auto& [key, address] : tasks.items()) {
      const auto index = parse_whole_number(key);
      if (tasks.is_object() && (!index || *index < 0 || *index >= std::ssize(tasks))) return true;
      if (!std::regex_match(address.get<std::string>(), kAddress) || !addresses.insert(address).second) return true;
    }
  }
  return false;
}

std::optional<Exception> of_tf_config(const Case& given) {
  const json& expected = given.expect();
  if (expected.contains("environment")) {
    json rest = expected;
    rest.erase("environment");
    return Exception{false, "TensorFlow's environment does not exist", rest};
  }
  if (!given["tf_config"].is_string()) return std::nullopt;
  const json config = json::parse(given["tf_config"].get<std::string>(), nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) {
    if (is_error(member(expected, "cluster")) && is_error(member(expected, "rpc_layer"))) return std::nullopt;
    json refused;
    for (const auto& [key, value] : expected.items()) refused[key] = kRefused;
    return Exception{false, "NaN, Infinity and numbers beyond double are not JSON: refused as a whole", refused};
  }
  const json task = member(config, "task");
  if (member(task, "type").is_structured()) {
    json refused = with(expected, "task_type", kRefused);
    if (expected.value("master", json()) != "") refused = with(refused, "master", kRefused);
    return Exception{false, "a task type that is a list or an object is not made a text of", refused};
  }
  if (member(task, "index").is_number() && std::abs(member(task, "index").get<double>()) > 9e18) {
    return Exception{false, "an index beyond 64 bits is refused", with(expected, "task_id", kRefused)};
  }
  if (!is_text_or_null(member(config, "rpc_layer"))) {
    json refused = with(expected, "rpc_layer", kRefused);
    if (expected.value("master", json()) != "") refused = with(refused, "master", kRefused);
    return Exception{false, "an rpc_layer that is not a text is refused", refused};
  }
  if (!is_text_or_null(member(config, "session_master"))) {
    return Exception{false, "a session_master that is not a text is refused", with(expected, "master", kRefused)};
  }
  const json strategy = member(expected, "strategy");
  if (member(strategy, "mode") == "multi_worker" &&
      cannot_meet(config, expected.value("task_type", ""), member(expected, "task_id"))) {
    return Exception{false, "a cluster whose tasks could never find each other is refused at once",
                     with(expected, "strategy", kRefused)};
  }
  return std::nullopt;
}

std::string list_text(const Case& given) { return given["text"].get<std::string>(); }

/// Forms that Python's int() accepts and Slurm never writes.
bool has_odd_numbers(const std::string& list) {
  static const std::regex kOdd(R"(\s|\[[^\]]*[+_][^\]]*\])");
  return std::regex_search(list, kOdd);
}

bool trains_without_gpus(const Case& given) {
  const json args = given.data.value("args", json::object());
  if (member(args, "gpus_per_task") == 0 || member(args, "gpus_per_node") == 0) return true;
  return member(args, "gpus_per_node").is_null() && given["env"].value("CUDA_VISIBLE_DEVICES", "").empty();
}

/// The expected result without GPUs: the cluster of tasks with a GPU each.
json without_gpus(const Case& given) {
  Case other = given;
  other.data["args"]["gpus_per_node"] = 1000;
  other.data["args"]["gpus_per_task"] = 1;
  json expected = run_area(other);
  if (is_error(expected)) return expected;
  expected["num_accelerators"] = {{"GPU", 0}};
  if (other["args"].value("auto_set_gpu", true)) expected["cuda_visible_devices"] = "";
  return expected;
}

std::vector<std::string> hosts_of(const Case& given) {
  return expand_hostlist(given["env"].at("SLURM_STEP_NODELIST").get<std::string>());
}

/// TensorFlow's cluster with the hosts in the order of the list.
json in_list_order(const Case& given) {
  const json args = given.data.value("args", json::object());
  const json fixed = member(args, "tasks_per_node");
  const auto hosts = hosts_of(given);
  const auto counts = fixed.is_null()
                          ? expand_tasks_per_node(given["env"].at("SLURM_STEP_TASKS_PER_NODE").get<std::string>())
                          : std::vector<int>(hosts.size(), fixed.get<int>());
  const auto rank = static_cast<std::size_t>(std::stoi(given["env"].at("SLURM_PROCID").get<std::string>()));
  json expected = given.expect();
  const int gpus = expected["num_accelerators"].value("GPU", 0);
  std::vector<std::string> addresses, devices;
  for (std::size_t i = 0; i < std::min(hosts.size(), counts.size()); ++i) {
    for (int task = 0; task < counts[i]; ++task) {
      addresses.push_back(str(hosts[i], ':', args.value("port_base", 8888) + task));
      std::string list;
      for (int k = 0; k < gpus; ++k) list += str(k ? "," : "", task * gpus + k);
      devices.push_back(list);
    }
  }
  std::size_t next = 0;
  for (auto& [job, tasks] : expected["cluster"].items()) {
    for (auto& address : tasks) address = addresses.at(next++);
  }
  expected["master"] = str(args.value("rpc_layer", "grpc"), "://", addresses.at(rank));
  if (args.value("auto_set_gpu", true)) expected["cuda_visible_devices"] = devices.at(rank);
  return expected;
}

std::optional<Exception> of_slurm(const Case& given) {
  if (trains_without_gpus(given)) {
    return Exception{false, "TensorFlow's Slurm resolver fails without GPUs; here tasks then train on CPUs",
                     without_gpus(given)};
  }
  if (is_error(given.expect())) return std::nullopt;
  if (member(given.expect(), "task_type").is_null()) {
    return Exception{false, "a rank that is not among the tasks is refused", kRefused};
  }
  const auto hosts = hosts_of(given);
  const bool by_list = !member(given.data.value("args", json::object()), "tasks_per_node").is_object();
  if (by_list && !std::ranges::is_sorted(hosts)) {
    return Exception{false,
                     "Slurm numbers tasks in the order of its node list; TensorFlow sorts the names of the hosts",
                     in_list_order(given)};
  }
  return std::nullopt;
}

std::optional<Exception> of_multi_worker(const Case& given) {
  if (given["program"] != "facts") return std::nullopt;
  json expected = given.expect();
  for (json& worker : expected["workers"]) {
    worker.erase("default_device_in_scope");
    worker.erase("host_device");
  }
  return Exception{false, "LibTorch has no default device that a scope could set, and hosts are not devices", expected};
}

}  // namespace

std::optional<Exception> exception_for(const Case& given) {
  if (has_untyped_arguments(given.data)) return Exception{true, "C++'s types do not let such arguments through", {}};
  if (given.area() == "tf_config") return of_tf_config(given);
  if (given.area() == "multi_worker") return of_multi_worker(given);
  if (given.area() != "resolver") return std::nullopt;
  if (given["kind"] == "slurm") return of_slurm(given);
  if (given["kind"] == "expand_hostlist" && !is_error(given.expect()) && has_odd_numbers(list_text(given))) {
    return Exception{false, "blanks, signs and underscores in a host list are refused", kRefused};
  }
  return std::nullopt;
}

}  // namespace lockstep::golden_cluster
