#pragma once

// Included by sources only.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

/// Starts gRPC and never stops it: it would stop in the background and could meet the end of the process there.
void keep_grpc();

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& tls);
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& tls);

}  // namespace lockstep::coordination
