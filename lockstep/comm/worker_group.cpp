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
                 "train only on this machine"});
  }
  return make(options);
}

std::string describe_routes(const CommunicationFacts& facts) {
  const std::string through = facts.on_cpu ? "" : "copied through host memory, ";
  if (facts.workers == 1) return "replicas of one process share their memory";
  if (facts.asked == Implementation::Ring)
    return str("RING: ", through, "sums by Gloo's ring over TCP; all else as with AUTO");
  const int elsewhere = facts.workers - facts.on_this_host;
  const std::string by = elsewhere == 0            ? "read from each other's memory where the system allows it"
                         : facts.on_this_host == 1 ? "over TCP"
                                                   : "over TCP between hosts, read from memory on this one";
  const std::string by_nccl = !facts.by_nccl ? ""
                              : facts.asked == Implementation::Nccl
                                  ? "gradients by NCCL's own sums from GPU to GPU; all else "
                                  : "gradients by NCCL from GPU to GPU; all else ";
  const bool is_missing = facts.asked == Implementation::Nccl && !facts.by_nccl;
  return str(is_missing ? "NCCL is not available, so AUTO: " : str(to_string(facts.asked), ": "), by_nccl, through,
             "up to ", kInlineBytes,
             " bytes in one message to every worker; more through the worker that owns each part, ", by);
}

}  // namespace lockstep
