#include "lockstep/comm/worker_group.h"

#include <atomic>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

std::atomic<WorkerGroupMaker> maker{nullptr};

}  // namespace

WorkerGroup::~WorkerGroup() = default;

WorkerGroupMaker set_worker_group_maker(WorkerGroupMaker given) { return maker.exchange(given); }

std::shared_ptr<WorkerGroup> join_workers(const WorkerGroupOptions& options) {
  const WorkerGroupMaker make = maker.load();
  if (make == nullptr) {
    throw Unimplemented(
        errors::kNotAvailable,
        {.what = str("training on ", options.cluster.num_workers(),
                     " workers needs Lockstep's component 'cluster', which is not part of this program"),
         .seen = to_string(options.cluster),
         .help = "build Lockstep with -DLOCKSTEP_CLUSTER=ON, and write find_package(Lockstep COMPONENTS "
                 "cluster) and target_link_libraries(program Lockstep::cluster); or unset TF_CONFIG to "
                 "train on this machine alone"});
  }
  return make(options);
}

}  // namespace lockstep
