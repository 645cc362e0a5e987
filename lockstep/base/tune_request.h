#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// The request that `lockstep tune` passes to the program it starts, in the environment variable LOCKSTEP_TUNE.
struct TuneRequest {
  int replicas = 1;     ///< replicas of every strategy, whatever devices the program names
  double seconds = 60;  ///< the process ends this long after its first step, if `lockstep tune` has not ended it before
  std::string report;   ///< the file that step times are appended to (base/tune_report.h)

  bool operator==(const TuneRequest&) const = default;
};

/// "2,60,/tmp/report"
std::string to_text(const TuneRequest& request);
std::optional<TuneRequest> parse_tune_request(std::string_view text);

/// The request to this process; null unless it is being measured. Throws InvalidArgument if the variable is set and cannot be
/// read: the program must not train as if nothing had been requested.
LOCKSTEP_EXPORT const TuneRequest* tune_request();

/// Whether the steps of this process are only measured. It then writes no model, checkpoint or log, and resumes none.
inline bool is_being_tuned() { return tune_request() != nullptr; }

}  // namespace lockstep
