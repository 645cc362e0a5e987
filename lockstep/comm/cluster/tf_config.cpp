#include "lockstep/comm/cluster/tf_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/comm/cluster/refusal.h"

namespace lockstep {
namespace {

// Objects in the order of the text: if two keys mean the same index, the last one counts.
using Json = nlohmann::ordered_json;

constexpr std::size_t kTextBeforeError = 40;

[[noreturn]] void refuse_syntax(std::string_view text, const char* source, const Json::exception& error) {
  const auto* syntax = dynamic_cast<const Json::parse_error*>(&error);
  std::string reason = error.what(), where = source;
  // "[json.exception...] parse error at line 1, column 5: syntax error while ...": we report the place ourselves.
  if (const auto start = reason.find(syntax ? ": " : "] "); start != std::string::npos) reason.erase(0, start + 2);
  if (syntax) {
    const std::size_t end = std::min(syntax->byte > 0 ? syntax->byte - 1 : 0, text.size());
    const std::size_t begin = end > kTextBeforeError ? end - kTextBeforeError : 0;
    where += str(", character ", end + 1, ", after '", shown(text.substr(begin, end - begin)), "'");
  }
  refuse_cluster(str(source, " is not JSON", text.empty() ? ": it is empty" : ""), kWriteTFConfig, where,
                 shown(reason));
}

Json parse(std::string_view text, const char* source = "TF_CONFIG") {
  // The parser takes a zero byte for the end of the text.
  if (text.find('\0') != text.npos) refuse_cluster(str(source, " is not JSON: zero byte"), kWriteTFConfig, source);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    refuse_syntax(text, source, error);
  }
}

std::string one_line(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Rejects a value. A list or an object is not printed: it can be nested deeply, and printing recurses.
[[noreturn]] void refuse_value(std::string_view rule, const Json& value, const std::string& place,
                               const char* help = kWriteTFConfig) {
  const std::string got = value.is_array() ? "a list" : value.is_object() ? "an object" : shown(one_line(value));
  refuse_cluster(str(rule, ", got ", got), help, place);
}

/// The value of a key, or nullptr. As in TensorFlow, lists and strings count as objects without keys: an empty list
/// often means "nothing". A value that contains the key's name was meant as something else.
const Json* member(const Json& value, const char* key, const char* name) {
  if (value.is_object()) {
    const auto found = value.find(key);
    return found == value.end() ? nullptr : &*found;
  }
  if (value.is_string() && value.get_ref<const std::string&>().find(key) == std::string::npos) return nullptr;
  if (value.is_array() && std::find(value.begin(), value.end(), Json(key)) == value.end()) return nullptr;
  refuse_value(str(name, " must be an object"), value, "TF_CONFIG");
}

ClusterSpec::Tasks tasks_in(const Json& value, const std::string& place) {
  if (!value.is_structured()) refuse_value("the tasks of a job must be a list or an object", value, place);
  ClusterSpec::Tasks tasks;
  for (const auto& [key, address] : value.items()) {  // the keys of a list are "0", "1", ...
    const std::string entry = value.is_array() ? str(place, '[', key, ']') : str(place, '.', shown(key));
    const auto index = parse_whole_number(key);
    if (!index || !std::in_range<int>(*index)) {
      refuse_cluster(str("a task index must be a whole number, got '", shown(key), "'"),
                     "write the tasks of a job as a list of addresses, or as {\"0\": \"host:port\", ...}", entry);
    }
    if (!address.is_string()) refuse_value("an address must be a string \"host:port\"", address, entry);
    tasks[static_cast<int>(*index)] = address.get<std::string>();
  }
  return tasks;
}

ClusterSpec cluster_in(const Json& value, const std::string& place) {
  if (!value.is_object()) refuse_value("a cluster must be an object of jobs", value, place);
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& [job, tasks] : value.items()) jobs[job] = tasks_in(tasks, str(place, '.', shown(job)));
  return ClusterSpec::of_tasks(std::move(jobs));
}

std::optional<std::string> text_at(std::string_view text, const char* key) {
  const Json document = parse(text);
  const Json* value = member(document, key, "TF_CONFIG");
  if (!value || value->is_null()) return std::nullopt;
  if (!value->is_string()) {
    refuse_value(str("\"", key, "\" must be a string"), *value, "TF_CONFIG", "write it as a string, or leave it out");
  }
  return value->get<std::string>();
}

/// The result of `read` for a key of "task", if there is one.
template <class Read>
auto read_from_task(std::string_view text, const char* key, Read&& read) -> std::optional<decltype(read(Json()))> {
  const Json document = parse(text);
  const Json* task = member(document, "task", "TF_CONFIG");
  const Json* value = task ? member(*task, key, "task") : nullptr;
  if (!value) return std::nullopt;
  return read(*value);
}

std::string type_in(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  // Python's text for such values: they are not names of jobs, and both libraries print the same.
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number()) return value.dump();
  refuse_value("the type of a task must be a string", value, "TF_CONFIG, task.type");
}

std::int64_t index_in(const Json& value) {
  std::optional<std::int64_t> index;
  if (value.is_boolean()) {
    index = value.get<bool>() ? 1 : 0;
  } else if (value.is_string() || value.is_number_integer()) {
    index = parse_whole_number(value.is_string() ? value.get<std::string>() : value.dump());
  } else if (value.is_number_float() && std::abs(value.get<double>()) < 9e18) {
    index = static_cast<std::int64_t>(value.get<double>());
  }
  if (index) return *index;
  refuse_value("the index of a task must be a whole number", value, "TF_CONFIG, task.index",
               "write \"index\": 0 for the first task of a job, 1 for the second, and so on");
}

}  // namespace

std::string to_string(const ClusterSpec& cluster) {
  Json result = Json::object();
  for (const std::string& job : cluster.jobs()) {
    Json& tasks = result[job];
    tasks = cluster.is_dense(job) || cluster.num_tasks(job) == 0 ? Json::array() : Json::object();
    for (const auto& [index, address] : cluster.tasks(job)) {
      Json& entry = tasks.is_array() ? tasks.emplace_back() : tasks[std::to_string(index)];
      entry = address;
    }
  }
  return one_line(result);
}

ClusterSpec parse_cluster(std::string_view json) { return cluster_in(parse(json, "the cluster"), "cluster"); }

namespace tf_config {

ClusterSpec cluster(std::string_view text) {
  const Json document = parse(text);
  const Json* value = member(document, "cluster", "TF_CONFIG");
  return value ? cluster_in(*value, "TF_CONFIG, cluster") : ClusterSpec();
}

std::optional<std::string> task_type(std::string_view text) { return read_from_task(text, "type", type_in); }
std::optional<std::int64_t> task_index(std::string_view text) { return read_from_task(text, "index", index_in); }
std::optional<std::string> rpc_layer(std::string_view text) { return text_at(text, "rpc_layer"); }
std::optional<std::string> session_master(std::string_view text) { return text_at(text, "session_master"); }

}  // namespace tf_config
}  // namespace lockstep
