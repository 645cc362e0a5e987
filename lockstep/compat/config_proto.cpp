#include "lockstep/compat/config_proto.h"

#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/roles.h"
#include "lockstep/strategy/multi_worker_strategy.h"

namespace lockstep::compat::names {

ConfigProto updated_config(const lockstep::Strategy& strategy, ConfigProto config) {
  const auto* const several = dynamic_cast<const lockstep::MultiWorkerMirroredStrategy*>(&strategy);
  if (several == nullptr) {
    config.isolate_session_state = config.isolate_session_state || !strategy.is_default();
    return config;
  }
  auto& rewriting = config.graph_options.rewrite_options;
  rewriting.scoped_allocator_optimization = ConfigProto::RewriterConfig::ON;
  rewriting.scoped_allocator_opts.enable_op = {"CollectiveReduce"};
  if (strategy.communication().implementation == Implementation::Nccl) config.experimental.collective_nccl = true;
  const ClusterDescription& cluster = several->cluster();
  if (cluster.is_local()) return config;
  config.experimental.collective_group_leader =
      collective_leader(cluster.training, {cluster.self().task_type, cluster.self().task_index});
  config.device_filters = {to_string(cluster.device())};
  return config;
}

}  // namespace lockstep::compat::names
