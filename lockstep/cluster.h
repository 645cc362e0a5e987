#pragma once

// Clusters described in code: ClusterSpec, resolvers, and a worker's place in them. Programs that take their cluster from
// TF_CONFIG, as `lockstep run` sets it, need only lockstep/lockstep.h.

#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/cluster_resolver.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/comm/cluster/slurm_resolver.h"
#include "lockstep/strategy/multi_worker_strategy.h"
