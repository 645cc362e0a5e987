#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/cluster/cluster_resolver.h"
#include "tests/golden/case.h"

// The cases of input.json that describe clusters.
namespace lockstep::golden_cluster {

using golden::Case;
using golden::json;
using golden::unknown_value;
using golden::UnknownForm;

// The outcome of a case, in the form of `expect`. UnknownForm if the program does not understand it.
json run_device_string(const Case& given);
json run_resolver(const Case& given);
json run_tf_config(const Case& given);
json run_multi_worker(const Case& given);
json run_area(const Case& given);

/// Whether cases of several workers can be run: they need Lockstep::cluster.
bool runs_multi_worker();
/// Called for every such case before the first is run: they share jobs.
void remember_for_job(const Case& given);

/// The result of `call()`, or {"error": "INVALID_ARGUMENT", "text": ...}.
json outcome_of(const std::function<json()>& call);

/// The difference; nothing if they agree. Compares the kind of errors. Unexpected keys of `got` are ignored.
std::string difference(const json& expected, const json& got, const std::string& path = "");

// Values of the library in the data's forms.
json as_dict(const ClusterSpec& cluster);
template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

/// An optional argument of a call: none if it is missing or null.
template <class T>
std::optional<T> argument(const json& arguments, const char* name) {
  if (!arguments.contains(name) || arguments.at(name).is_null()) return std::nullopt;
  return arguments.at(name).get<T>();
}

/// Arguments that name a task: `master`'s, and those of resolvers that read the rest elsewhere.
TaskOptions task_options(const json& arguments);

/// Deliberate differences, and cases with nothing to test in C++.
struct Exception {
  bool meaningless = false;  ///< there is nothing in C++ to compare with
  std::string reason;
  json expect;  ///< the expected result instead; null if meaningless
};
std::optional<Exception> exception_for(const Case& given);

}  // namespace lockstep::golden_cluster
