#include "lockstep/comm/sum_route.h"

#include "lockstep/base/text.h"

namespace lockstep {

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
