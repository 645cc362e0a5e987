#pragma once

#include "lockstep/base/error.h"

namespace lockstep::gpu {

/// What stands in for a GPU's part in a build without LOCKSTEP_CUDA is never to be reached.
[[noreturn]] inline void throw_not_built() {
  throw Internal(errors::kInternal, {.what = "a GPU was used in a build without LOCKSTEP_CUDA",
                                     .help = "this is a bug in Lockstep: please report it"});
}

}  // namespace lockstep::gpu
