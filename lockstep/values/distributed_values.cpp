#include "lockstep/values/distributed_values.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::detail {

void throw_component_out_of_range(const char* kind, std::size_t index, std::size_t size) {
  throw InvalidArgument(
      errors::kComponent,
      {.what = str("component ", index, " of a ", kind, " with ", counted(size, "component"), " does not exist"),
       .help = "use an index below size(); a distributed value has one component per local replica"});
}

void throw_not_inside_replica(std::size_t size) {
  throw InvalidArgument(
      errors::kComponent,
      {.what = str("a PerReplica of ", counted(size, "component"), " is used as one value outside of a replica"),
       .help = "use it inside the function given to run, or call strategy.reduce(...) for one value, "
               "strategy.local_results(...) or operator[] for single components"});
}

void throw_not_placed(const Placement& placement, int replica, const std::string& holder) {
  std::string devices;
  for (const std::string& device : placement.devices) devices += str(devices.empty() ? "" : ", ", device);
  throw InvalidArgument(errors::kComponent,
                        {.what = str(holder, holder.empty() ? "" : " holds ",
                                     "a Mirrored without a component on the device of local replica ", replica),
                         .seen = str("its devices are ", devices),
                         .help = "reduce or broadcast it to the devices of all replicas"});
}

}  // namespace lockstep::detail
