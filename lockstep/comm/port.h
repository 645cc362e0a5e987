#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/address.h"

// The addresses of cluster entries as this machine sees them: "10.0.0.3:2222", "name:2222", "[::1]:2222".
namespace lockstep {

/// Whether `address` names this machine's loopback and nothing else.
LOCKSTEP_EXPORT bool is_on_loopback(const std::string& address);

/// What messages call a port, and what helps to get another one.
struct PortWords {
  std::string name;
  Code code_if_taken;
  std::string help_if_taken;
  std::string help_with_host;
};

/// Listens at an address; port 0 is a free one. Throws L106 if it is taken, with the process that holds it where /proc shows
/// it, or if the address is not this host's.
LOCKSTEP_EXPORT Descriptor hold_port(const Address& address, const PortWords& words);

/// The port of a worker's entry, to which no one connects: it is kept, so that a second process is noticed.
LOCKSTEP_EXPORT Descriptor hold_port_of_entry(const std::string& worker, const std::string& address);
LOCKSTEP_EXPORT void drop_strangers(const Descriptor& held);

/// What a connection to an address meets.
struct Reach {
  std::string target = {};  ///< the numeric address, "127.0.0.1:2222"; empty: the name is not known
  int error = 0;            ///< of the system; ETIMEDOUT: no answer

  bool answers() const { return !target.empty() && error == 0; }
  LOCKSTEP_EXPORT std::string why() const;  ///< "connection refused", "no answer", "name not known"
};

/// Tries all at the same time for at most `wait` (names are looked up one after the other before).
LOCKSTEP_EXPORT std::vector<Reach> probe(const std::vector<std::string>& addresses, std::chrono::milliseconds wait);

/// Whether a service that uses TLS is there.
LOCKSTEP_EXPORT bool speaks_tls(const std::string& address, std::chrono::milliseconds wait);

LOCKSTEP_EXPORT std::string host_name();

}  // namespace lockstep
