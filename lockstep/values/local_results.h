#pragma once

#include <vector>

#include "lockstep/values/select.h"

namespace lockstep {

/// The local components of a value, as one list:
///   - a PerReplica or Mirrored: its components;
///   - a structure: `replicas` structures, each with its components; plain leaves are repeated;
///   - anything else: a list with that one value.
///
///     local_results(std::pair{PerReplica<int>({1, 2}), 7}, 2);  // {pair{1, 7}, pair{2, 7}}
template <class V>
std::vector<selected_t<V>> local_results(const V& value, [[maybe_unused]] int replicas) {
  if constexpr (is_distributed_v<V>) {
    return {value.begin(), value.end()};
  } else if constexpr (requires { StructureTraits<V>::local_results(value, replicas); }) {
    return StructureTraits<V>::local_results(value, replicas);
  } else if constexpr (is_structure_v<V>) {
    std::vector<selected_t<V>> results;
    results.reserve(static_cast<std::size_t>(replicas));
    for (int k = 0; k < replicas; ++k) results.push_back(select_component(value, k));
    return results;
  } else {
    return {value};
  }
}

}  // namespace lockstep
