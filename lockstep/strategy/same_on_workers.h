#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::workers {

/// What every worker describes in its own words, and all must describe alike.
struct Description {
  std::string what;  ///< "model"
  Texts lines;
  int number = errors::kDifferentPrograms;
  std::string help = "run the same program with the same arguments on all workers";
};

/// Throws on every worker if their lines differ: "model of worker 1 differs from that of workers 0 and 2". A collective named
/// after the program's call, so that a worker which calls something else is noticed too.
void require_same(WorkerGroup& group, const Description& mine, std::string_view call, const Deadline& deadline);

}  // namespace lockstep::workers
