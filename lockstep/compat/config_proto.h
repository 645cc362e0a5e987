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
  std::map<std::string, int> device_count = {};
  int intra_op_parallelism_threads = 0;
  int inter_op_parallelism_threads = 0;
  bool allow_soft_placement = false;
  bool log_device_placement = false;
  bool isolate_session_state = false;
  std::vector<std::string> device_filters = {};

  struct ScopedAllocatorOptions {
    std::vector<std::string> enable_op = {};
    bool operator==(const ScopedAllocatorOptions&) const = default;
  };
  struct RewriterConfig {
    enum Toggle { DEFAULT = 0, ON = 1, OFF = 2 };
    Toggle scoped_allocator_optimization = DEFAULT;
    ScopedAllocatorOptions scoped_allocator_opts = {};
    bool operator==(const RewriterConfig&) const = default;
  };
  struct GraphOptions {
    RewriterConfig rewrite_options = {};
    bool operator==(const GraphOptions&) const = default;
  };
  GraphOptions graph_options = {};

  struct Experimental {
    std::string collective_group_leader = {};
    bool collective_nccl = false;
    bool operator==(const Experimental&) const = default;
  };
  Experimental experimental = {};

  bool operator==(const ConfigProto&) const = default;
};

/// `config` with this strategy's settings.
LOCKSTEP_EXPORT ConfigProto updated_config(const lockstep::Strategy& strategy, ConfigProto config);

}  // namespace lockstep::compat::names
