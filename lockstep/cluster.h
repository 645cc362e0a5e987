#pragma once

// Clusters described in code: ClusterSpec, resolvers, and what a worker knows of its place. Programs that take their cluster
// from TF_CONFIG, as `lockstep run` sets it, need lockstep/lockstep.h alone.

#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/cluster/cluster_resolver.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/comm/cluster/slurm_resolver.h"
#include "lockstep/strategy/multi_worker_strategy.h"
