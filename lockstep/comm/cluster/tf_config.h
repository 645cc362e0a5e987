#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_spec.h"

/// The parts of the environment variable TF_CONFIG, each parsed from its text (cluster_resolver.h reads it). Parts fail
/// independently: a mistake in "task" does not prevent reading the cluster. Errors are InvalidArgument and name the
/// place in the text. They cover syntax and types; roles.h checks whether the task is in the cluster, and
/// cluster_description.h checks numbers and addresses.
///
///     {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}
namespace lockstep::tf_config {

LOCKSTEP_EXPORT ClusterSpec cluster(std::string_view text);                        ///< empty: none given
LOCKSTEP_EXPORT std::optional<std::string> task_type(std::string_view text);       ///< "task": {"type": ...}
LOCKSTEP_EXPORT std::optional<std::int64_t> task_index(std::string_view text);     ///< "task": {"index": ...}
LOCKSTEP_EXPORT std::optional<std::string> rpc_layer(std::string_view text);       ///< TensorFlow's; not used
LOCKSTEP_EXPORT std::optional<std::string> session_master(std::string_view text);  ///< TensorFlow 1's; not used

}  // namespace lockstep::tf_config
