#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace lockstep::coordination {

inline constexpr std::size_t kKeyBytes = 32;

/// The key of LOCKSTEP_JOB_KEY_FILE (a file of mode 0600: 32 bytes, or 64 hex digits) or LOCKSTEP_JOB_KEY (64 hex digits);
/// empty without any. Throws L111 if there is one that cannot be used.
std::string find_job_key();

/// HMAC-SHA256 over the parts and their lengths, so that bytes cannot move from one part to the next.
std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts);

/// Takes the same time wherever they differ.
bool same_bytes(std::string_view a, std::string_view b);

}  // namespace lockstep::coordination
