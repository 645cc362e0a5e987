#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib::detail {

/// Random numbers of functions that one worker calls for all, or each for its own towers: of `map`, `update` and merges. While
/// it lives, this thread draws from a stream of its own, which the seed of the job, the number of the call and the place (the
/// item, or the tower) decide: on every worker the same.
class LOCKSTEP_EXPORT ClientRandom {
 public:
  ClientRandom(const Strategy& core, int call, std::size_t place);
  ~ClientRandom();

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace lockstep::contrib::detail
