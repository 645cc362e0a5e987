#include "lockstep/comm/cluster/tf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/comm/cluster/refusal.h"
#include "lockstep/comm/cluster/whole_number.h"

namespace lockstep {
namespace {

// Objects in the order of the text: of two keys that mean the same index, the last one counts.
using Json = nlohmann::ordered_json;

constexpr std::size_t kTextBeforeError = 40;

[[noreturn]] void refuse_syntax(std::string_view text, const char* source, const Json::exception& error) {
  const auto* syntax = dynamic_cast<const Json::parse_error*>(&error);
  std::string reason = error.what();
  // "[json.exception...] parse error at line 1, column 5: syntax error while ...": the place is said in our own words.
  if (const auto start = reason.find(syntax ? ": " : "] "); start != std::string::npos) reason.erase(0, start + 2);
  std::string where = source;
  if (syntax) {
    const std::size_t end = std::min(syntax->byte > 0 ? syntax->byte - 1 : 0, text.size());
    const std::size_t begin = end > kTextBeforeError ? end - kTextBeforeError : 0;
    where += str(", character ", end + 1, ", after '", shown(text.substr(begin, end - begin)), "'");
  }
  refuse_cluster(str(source, " is not JSON", text.empty() ? ": it is empty" : ""), where, kWriteTFConfig,
                 shown(reason));
}

Json parse(std::string_view text, const char* source) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    refuse_syntax(text, source, error);
  }
}

/// The value in a few words. A list or an object can be nested deeply, and printing one recurses.
std::string described(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return shown(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// The value of a key, or nullptr. As in TensorFlow, lists and texts count as objects without keys: an empty list is a
/// common way to say "nothing". One that has the key's name in it was meant as something else.
const Json* member(const Json& value, const char* key, const char* name) {
  if (value.is_object()) {
    const auto found = value.find(key);
    return found == value.end() ? nullptr : &*found;
  }
  const bool names_key = (value.is_string() && value.get_ref<const std::string&>().find(key) != std::string::npos) ||
                         (value.is_array() && std::find(value.begin(), value.end(), Json(key)) != value.end());
  if ((value.is_string() || value.is_array()) && !names_key) return nullptr;
  refuse_cluster(str(name, " must be an object, got ", described(value)), "TF_CONFIG", kWriteTFConfig);
}

std::string address_in(const Json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  refuse_cluster(str("an address must be a string, got ", described(value)), place,
                 "write each address as a string \"host:port\"");
}

int index_in(const std::string& key, const std::string& place) {
  const auto index = parse_whole_number(key);
  if (!index || *index > std::numeric_limits<int>::max() || *index < std::numeric_limits<int>::min()) {
    refuse_cluster(str("a task index must be a whole number, got '", shown(key), "'"), place,
                   "write the tasks of a job as a list of addresses, or as {\"0\": \"host:port\", ...}");
  }
  return static_cast<int>(*index);
}

ClusterSpec::Tasks tasks_in(const Json& value, const std::string& place) {
  ClusterSpec::Tasks tasks;
  if (value.is_array()) {
    for (const Json& each : value) {
      const int index = static_cast<int>(tasks.size());
      tasks.emplace_hint(tasks.end(), index, address_in(each, str(place, '[', index, ']')));
    }
  } else if (value.is_object()) {
    for (const auto& [key, each] : value.items()) {
      const std::string entry = str(place, '.', shown(key));
      tasks[index_in(key, entry)] = address_in(each, entry);
    }
  } else {
    refuse_cluster(str("the tasks of a job must be a list or an object, got ", described(value)), place,
                   "write the tasks of a job as a list: \"worker\": [\"host0:2222\", \"host1:2222\"]");
  }
  return tasks;
}

ClusterSpec cluster_in(const Json& value, const std::string& place) {
  if (!value.is_object()) {
    refuse_cluster(str("a cluster must be an object of jobs, got ", described(value)), place, kWriteTFConfig);
  }
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& [job, tasks] : value.items()) jobs[job] = tasks_in(tasks, str(place, '.', shown(job)));
  return ClusterSpec::of_tasks(std::move(jobs));
}

Json json_of(const ClusterSpec& cluster) {
  Json result = Json::object();
  for (const std::string& job : cluster.jobs()) {
    Json tasks = cluster.is_dense(job) || cluster.num_tasks(job) == 0 ? Json::array() : Json::object();
    for (const auto& [index, address] : cluster.tasks(job)) {
      if (tasks.is_array()) {
        tasks.push_back(address);
      } else {
        tasks[std::to_string(index)] = address;
      }
    }
    result[job] = std::move(tasks);
  }
  return result;
}

std::string one_line(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::optional<std::string> text_at(std::string_view text, const char* key) {
  const Json document = parse(text, "TF_CONFIG");
  const Json* value = member(document, key, "TF_CONFIG");
  if (!value || value->is_null()) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  refuse_cluster(str("\"", key, "\" must be a string, got ", described(*value)), "TF_CONFIG",
                 str("write \"", key, "\" as a string, or leave it out"));
}

/// Calls `read` with the value of a key of "task", if there is one.
template <class Read>
auto read_from_task(std::string_view text, const char* key, Read&& read) -> std::optional<decltype(read(Json()))> {
  const Json document = parse(text, "TF_CONFIG");
  const Json* task = member(document, "task", "TF_CONFIG");
  const Json* value = task ? member(*task, key, "task") : nullptr;
  if (!value) return std::nullopt;
  return read(*value);
}

std::string type_in(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  // What Python makes of such values: they are not names of jobs, and whoever compares the two sees the same text.
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number()) return value.dump();
  refuse_cluster(str("the type of a task must be a string, got ", described(value)), "TF_CONFIG, task.type",
                 kWriteTFConfig);
}

std::optional<std::int64_t> whole_number_in(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_string()) return parse_whole_number(value.get_ref<const std::string&>());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) return {};
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float() && std::abs(value.get<double>()) < 9e18) return std::int64_t(value.get<double>());
  return {};
}

}  // namespace

std::string to_string(const ClusterSpec& cluster) { return one_line(json_of(cluster)); }

ClusterSpec parse_cluster(std::string_view json) { return cluster_in(parse(json, "the cluster"), "cluster"); }

namespace tf_config {

ClusterSpec cluster(std::string_view text) {
  const Json document = parse(text, "TF_CONFIG");
  const Json* value = member(document, "cluster", "TF_CONFIG");
  return value ? cluster_in(*value, "TF_CONFIG, cluster") : ClusterSpec();
}

std::optional<std::string> task_type(std::string_view text) { return read_from_task(text, "type", type_in); }

std::optional<std::int64_t> task_index(std::string_view text) {
  return read_from_task(text, "index", [](const Json& value) {
    if (const auto index = whole_number_in(value)) return *index;
    refuse_cluster(str("the index of a task must be a whole number, got ", described(value)), "TF_CONFIG, task.index",
                   "write \"index\": 0 for the first task of a job, 1 for the second, and so on");
  });
}

std::optional<std::string> rpc_layer(std::string_view text) { return text_at(text, "rpc_layer"); }

std::optional<std::string> session_master(std::string_view text) { return text_at(text, "session_master"); }

std::string write(const ClusterSpec& cluster, const std::string& task_type, int task_index) {
  return one_line(Json{{"cluster", json_of(cluster)}, {"task", {{"type", task_type}, {"index", task_index}}}});
}

}  // namespace tf_config
}  // namespace lockstep
