#include "lockstep/base/export.h"
#include "lockstep/comm/workers/cluster_workers.h"

namespace {

/// Being linked is all it takes: the target Lockstep::cluster asks the linker for `lockstep_cluster_component`, which brings
/// this file along.
const bool is_installed = (lockstep::set_worker_group_maker(lockstep::make_cluster_workers), true);

}  // namespace

extern "C" LOCKSTEP_EXPORT int lockstep_cluster_component() { return is_installed ? 1 : 0; }
