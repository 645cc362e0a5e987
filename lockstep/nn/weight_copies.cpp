#include "lockstep/nn/weight_copies.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/strategy/devices.h"

namespace lockstep {

WeightCopies plan_weight_copies(const std::vector<at::Device>& devices, bool apart) {
  WeightCopies copies;
  copies.is_mixed = are_mixed(devices);
  for (std::size_t k = 0; k < devices.size(); ++k) {
    const auto same = std::ranges::find_if(copies.first, [&](std::size_t f) { return devices[f] == devices[k]; });
    const bool is_new = apart || same == copies.first.end();
    copies.of_replica.push_back(is_new ? copies.count() : static_cast<std::size_t>(same - copies.first.begin()));
    if (is_new) copies.first.push_back(k);
  }
  return copies;
}

std::string to_string(const WeightCopies& copies) {
  std::string text;
  for (std::size_t c = 0; c < copies.count(); ++c) {
    text += str("copy ", c, ": replicas");
    for (std::size_t k = 0; k < copies.of_replica.size(); ++k) text += copies.of_replica[k] == c ? str(" ", k) : "";
    text += "\n";
  }
  return text;
}

}  // namespace lockstep
