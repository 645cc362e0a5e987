#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::compat::names {

/// The fields of TensorFlow's session configuration that strategies and their programs set. Lockstep has no sessions:
/// it fills in TensorFlow's values, which are not used.
struct ConfigProto {
  std::map<std::string, int> device_count = {};  ///< as in TensorFlow
  int intra_op_parallelism_threads = 0;          ///< as in TensorFlow
  int inter_op_parallelism_threads = 0;          ///< as in TensorFlow
  bool allow_soft_placement = false;             ///< as in TensorFlow
  bool log_device_placement = false;             ///< as in TensorFlow
  bool isolate_session_state = false;            ///< as in TensorFlow
  std::vector<std::string> device_filters = {};  ///< as in TensorFlow

  /// As in TensorFlow.
  struct ScopedAllocatorOptions {
    std::vector<std::string> enable_op = {};  ///< as in TensorFlow
    bool operator==(const ScopedAllocatorOptions&) const = default;
  };
  /// As in TensorFlow.
  struct RewriterConfig {
    /// As in TensorFlow.
    enum Toggle { DEFAULT = 0, ON = 1, OFF = 2 };
    Toggle scoped_allocator_optimization = DEFAULT;     ///< as in TensorFlow
    ScopedAllocatorOptions scoped_allocator_opts = {};  ///< as in TensorFlow
    bool operator==(const RewriterConfig&) const = default;
  };
  /// As in TensorFlow.
  struct GraphOptions {
    RewriterConfig rewrite_options = {};  ///< as in TensorFlow
    bool operator==(const GraphOptions&) const = default;
  };
  GraphOptions graph_options = {};  ///< as in TensorFlow

  /// As in TensorFlow.
  struct Experimental {
    std::string collective_group_leader = {};  ///< as in TensorFlow
    bool collective_nccl = false;              ///< as in TensorFlow
    bool operator==(const Experimental&) const = default;
  };
  Experimental experimental = {};  ///< as in TensorFlow

  bool operator==(const ConfigProto&) const = default;
};

/// `config` with this strategy's settings.
LOCKSTEP_EXPORT ConfigProto updated_config(const lockstep::Strategy& strategy, ConfigProto config);

}  // namespace lockstep::compat::names
