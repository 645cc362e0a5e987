#pragma once

// Included by sources only.

#include <grpc/grpc.h>

#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::coordination {

/// Starts gRPC and never stops it: it would stop in the background and could meet the end of the process there.
inline void keep_grpc() { [[maybe_unused]] static const bool once = (grpc_init(), true); }

/// What is in a file of TlsFiles; nothing if none was given.
inline std::string pem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!text.empty() || path.empty()) return text;
  throw InvalidArgument(errors::kBadOption, {.what = str("the TLS file ", path, " cannot be read"),
                                             .help = "give the paths of PEM files in JoinOptions::tls"});
}

}  // namespace lockstep::coordination
