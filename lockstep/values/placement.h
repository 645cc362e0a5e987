#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

/// The devices of a Mirrored's components, where they are not those of the local replicas in their order.
struct Placement {
  std::vector<std::string> devices = {};  ///< device of each component, in full spelling
  std::vector<int> replicas = {};         ///< the local replica that has the device; -1: none has

  /// Where in the list is what a local replica sees: the component on its device, or the only one, which is a plain value
  /// to all of them. The number of components: it sees none.
  std::size_t component_of(int replica) const {
    if (devices.size() == 1) return 0;
    return static_cast<std::size_t>(std::find(replicas.begin(), replicas.end(), replica) - replicas.begin());
  }
};

}  // namespace lockstep
