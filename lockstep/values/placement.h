#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

/// The devices of a Mirrored's components, if they are not the local replicas' in order.
struct Placement {
  std::vector<std::string> devices = {};  ///< device of each component, in full spelling
  std::vector<int> replicas = {};         ///< the local replica on the device; -1: none

  /// The position of the component that a local replica sees: the one on its device, or the only one, a plain value to
  /// all of them. The number of components if it sees none.
  std::size_t component_of(int replica) const {
    if (devices.size() == 1) return 0;
    return static_cast<std::size_t>(std::find(replicas.begin(), replicas.end(), replica) - replicas.begin());
  }
};

}  // namespace lockstep
