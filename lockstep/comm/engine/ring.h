#pragma once

#include "lockstep/comm/engine/engine.h"

struct lockstep_ring;

namespace lockstep::engine {

/// Gloo's own ring, for Implementation::Ring. Loads the plugin that contains Gloo (L114).
class Ring {
 public:
  Ring(const EngineOptions& options, int channel);

  /// Sums the arrays of all workers in place.
  void all_reduce(Dtype dtype, void* data, std::size_t elements, Deadline deadline);

 private:
  const lockstep_engine_api* api_;
  std::unique_ptr<lockstep_ring, void (*)(lockstep_ring*)> ring_;
};

}  // namespace lockstep::engine
