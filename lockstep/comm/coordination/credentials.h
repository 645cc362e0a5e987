#pragma once

#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>

#include "lockstep/comm/tls_files.h"

// Credentials that admit a worker to a job and keep strangers out: the job key and certificates. Unusable ones are
// L111.
namespace lockstep::coordination {

inline constexpr std::size_t kKeyBytes = 32;

/// The key of LOCKSTEP_JOB_KEY_FILE (a file of mode 0600: 32 bytes, or 64 hex digits) or LOCKSTEP_JOB_KEY (64 hex
/// digits); empty without either. Throws L111 if it is unusable.
std::string find_job_key();

/// HMAC-SHA256 over the parts and their lengths, so that bytes cannot move from one part to the next.
std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts);

/// Compares in constant time.
bool same_bytes(std::string_view a, std::string_view b);

/// The files given in the options, or those of LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY;
/// none without any. Throws L111 if they cannot be used or do not belong together: gRPC would only report that it
/// failed.
TlsFiles find_tls_files(const TlsFiles& given);

/// The contents of such a file.
std::string read_pem(const std::string& path);

/// Whether a service with TLS answers there.
bool speaks_tls(const std::string& address, std::chrono::milliseconds wait);

/// Whether gRPC's reason for the end of a session is that the two sides did not agree on TLS.
bool is_tls_failure(const std::string& why);

}  // namespace lockstep::coordination
