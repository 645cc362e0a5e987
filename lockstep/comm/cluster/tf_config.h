#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_spec.h"

/// The parts of the environment variable TF_CONFIG, each read from its text (cluster_resolver.h gets it). A part is an error
/// of its own: what is wrong in "task" does not keep the cluster from being read. Errors are InvalidArgument and name the place
/// in the text. They are about syntax and types; whether the task is one of the cluster is checked by roles.h, and numbers and
/// addresses by cluster_description.h.
///
///     {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}
namespace lockstep::tf_config {

LOCKSTEP_EXPORT ClusterSpec cluster(std::string_view text);                        ///< empty: none given
LOCKSTEP_EXPORT std::optional<std::string> task_type(std::string_view text);       ///< "task": {"type": ...}
LOCKSTEP_EXPORT std::optional<std::int64_t> task_index(std::string_view text);     ///< "task": {"index": ...}
LOCKSTEP_EXPORT std::optional<std::string> rpc_layer(std::string_view text);       ///< TensorFlow's; not used
LOCKSTEP_EXPORT std::optional<std::string> session_master(std::string_view text);  ///< TensorFlow 1's; not used

}  // namespace lockstep::tf_config
