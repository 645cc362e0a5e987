#pragma once

#include <chrono>
#include <string>

#include "lockstep/comm/tls_files.h"

namespace lockstep::coordination {

/// The files given in the options, or those of LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY; none
/// without any. Throws L111 if they cannot be used or do not belong together: gRPC would only say that it failed.
TlsFiles find_tls_files(const TlsFiles& given);

/// What is in such a file.
std::string read_pem(const std::string& path);

/// Whether a service that uses TLS is there.
bool speaks_tls(const std::string& address, std::chrono::milliseconds wait);

/// Whether gRPC's reason for the end of a session is that the two sides did not agree on TLS.
bool is_tls_failure(const std::string& why);

}  // namespace lockstep::coordination
