#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/comm/communication_options.h"

namespace lockstep {

/// What decides how sums travel between workers.
struct CommunicationFacts {
  Implementation asked = Implementation::Auto;
  bool on_cpu = true;
  bool by_nccl = false;  ///< gradients go from GPU to GPU
  int workers = 1;
  int on_this_host = 1;  ///< workers with the address of this one, itself included
};

/// Arrays of at most this size travel in one message.
inline constexpr std::size_t kInlineBytes = 8 << 10;

/// The routes of sums of all sizes, in one line for people.
LOCKSTEP_EXPORT std::string describe_routes(const CommunicationFacts& facts);

}  // namespace lockstep
