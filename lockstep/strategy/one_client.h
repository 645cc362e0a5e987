#pragma once

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"

// One client drives all replicas, as in TensorFlow 1.11, however many workers stand for it: OnlyFirstReplica is the first of all,
// not of each worker, and an OnRead variable without aggregation is read as a sum. `is_client_of_several_workers` is in strategy.h.
namespace lockstep::detail {

LOCKSTEP_EXPORT void set_one_client(Strategy& strategy, void* client);
LOCKSTEP_EXPORT void* one_client(const Strategy& strategy);  ///< null: there is none

}  // namespace lockstep::detail
