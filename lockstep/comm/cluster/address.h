#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// Where a task listens.
struct Address {
  std::string host;        ///< a name or an address; IPv6 without its brackets
  std::uint16_t port = 0;  ///< 0 to 65535

  bool operator==(const Address&) const = default;
};

/// Reads "host:2222", "10.0.0.1:2222" or "[fe80::1]:2222"; everything else is InvalidArgument.
LOCKSTEP_EXPORT Address parse_address(std::string_view text);

LOCKSTEP_EXPORT std::string to_string(const Address& address);

/// Whether only programs on the same machine can reach this host: "localhost", 127.0.0.0/8 or ::1.
LOCKSTEP_EXPORT bool is_loopback(std::string_view host);

/// Whether two hosts are the same machine, judging by their names.
LOCKSTEP_EXPORT bool is_same_host(std::string_view a, std::string_view b);

}  // namespace lockstep
