#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// The devices of a Mirrored's components, where they are not those of the local replicas in their order.
struct Placement {
  std::vector<std::string> devices = {};  ///< of each component, in full spelling
  std::vector<int> replicas = {};         ///< the local replica that has the device; -1: none has
};

}  // namespace lockstep
