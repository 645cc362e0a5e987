#pragma once

// Included by sources only.

#include <grpc/grpc.h>

namespace lockstep::coordination {

/// Starts gRPC and never stops it: it would stop in the background and could meet the end of the process there.
inline void keep_grpc() { [[maybe_unused]] static const bool once = (grpc_init(), true); }

}  // namespace lockstep::coordination
