#pragma once

#include "lockstep/base/export.h"

// Only for tests; no public header includes this.
namespace lockstep {

/// How models are made from now on, on a machine with one GPU or none.
struct ApartOptions {
  bool weights = false;  ///< each replica has a copy of the weights
  bool in_reach = true;  ///< false: as if no GPU reached another one's memory
  bool mixed = false;    ///< copies as if some replicas were on CPUs and others on GPUs
};
LOCKSTEP_EXPORT void keep_weights_apart(const ApartOptions& options);
LOCKSTEP_EXPORT ApartOptions weights_apart();

}  // namespace lockstep
