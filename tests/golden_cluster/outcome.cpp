#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tests/golden_cluster/cases.h"

namespace lockstep::golden_cluster {
namespace {

/// The kind of error that corresponds to an exception of TensorFlow's, or to one of our own in an expected exception.
std::string kind_of(const std::string& exception) {
  static const std::map<std::string, const char*> kKinds = {{"FAILED_PRECONDITION", "FAILED_PRECONDITION"},
                                                            {"RuntimeError", "FAILED_PRECONDITION"},
                                                            {"FailedPrecondition", "FAILED_PRECONDITION"},
                                                            {"NotFound", "NOT_FOUND"},
                                                            {"OutOfRange", "OUT_OF_RANGE"},
                                                            {"NotImplementedError", "UNIMPLEMENTED"}};
  const auto found = kKinds.find(exception);
  return found == kKinds.end() ? "INVALID_ARGUMENT" : found->second;
}

}  // namespace

json outcome_of(const std::function<json()>& call) {
  try {
    return call();
  } catch (const Error& error) {
    if (error.text().help.empty()) throw UnknownForm(str("an error without help: ", error.what()));
    return {{"error", to_string(error.code())}, {"text", error.what()}};
  }
}

std::string difference(const json& expected, const json& got, const std::string& path) {
  const auto differs = [&](const std::string& what) {
    return str(path.empty() ? "the result" : path, ": ", what, ": expected ", expected.dump(), ", got ", got.dump());
  };
  const bool is_error = got.is_object() && got.contains("error");
  if (expected.is_object() && expected.contains("error")) {
    if (!is_error) return differs("no error");
    return got["error"] == kind_of(expected["error"]) ? "" : differs("the error differs");
  }
  if (is_error) return differs("an error");
  if (!expected.is_object() || !got.is_object()) return expected == got ? "" : differs("the value differs");
  for (const auto& [key, value] : expected.items()) {
    if (!got.contains(key)) return differs("no \"" + key + "\"");
    if (auto text = difference(value, got[key], path + "/" + key); !text.empty()) return text;
  }
  return "";
}

json as_dict(const ClusterSpec& cluster) {
  json result = json::object();
  for (const std::string& job : cluster.jobs()) {
    json tasks = cluster.is_dense(job) ? json::array() : json::object();
    for (const auto& [index, address] : cluster.tasks(job)) {
      if (tasks.is_array()) {
        tasks.push_back(address);
      } else {
        tasks[std::to_string(index)] = address;
      }
    }
    result[job] = tasks;
  }
  return result;
}

TaskOptions task_options(const json& arguments) {
  golden::allow_only(arguments, {"task_type", "task_id", "rpc_layer"}, "the arguments that name a task");
  return {.task_type = argument<std::string>(arguments, "task_type"),
          .task_id = argument<std::int64_t>(arguments, "task_id"),
          .rpc_layer = argument<std::string>(arguments, "rpc_layer")};
}

json run_area(const Case& given) {
  if (given.area() == "device_string") return run_device_string(given);
  if (given.area() == "multi_worker") return run_multi_worker(given);
  if (given.area() == "resolver") return run_resolver(given);
  if (given.area() == "tf_config") return run_tf_config(given);
  unknown_value("area", given.area());
}

}  // namespace lockstep::golden_cluster
