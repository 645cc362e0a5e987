#pragma once

// Included by sources only.

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <cstdlib>

namespace lockstep::coordination {

/// Starts gRPC and never stops it: it would stop in the background and could meet the end of the process there. It keeps
/// its messages to itself, since ours say more; GRPC_VERBOSITY=ERROR shows them.
inline void keep_grpc() {
  [[maybe_unused]] static const bool once = [] {
    constexpr auto kNothing = static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1);
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_verbosity(kNothing);
    grpc_init();
    return true;
  }();
}

}  // namespace lockstep::coordination
