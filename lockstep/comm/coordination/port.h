#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/descriptor.h"

// The addresses of cluster entries as this machine sees them: "10.0.0.3:2222", "name:2222", "[::1]:2222".
namespace lockstep::coordination {

/// Whether `address` names this machine's loopback and nothing else.
bool is_loopback(const std::string& address);

/// Listens at the address of an entry called `name`, to which no one connects: it is kept, so that a second process is noticed.
/// Throws L106 if it is taken, with the process that holds it where /proc shows it, or if the address is not this host's.
Descriptor hold_port(const std::string& name, const std::string& address);
void drop_strangers(const Descriptor& held);

/// What a connection to an address meets.
struct Reach {
  std::string target = {};  ///< the numeric address, "127.0.0.1:2222"; empty: the name is not known
  int error = 0;            ///< of the system; ETIMEDOUT: no answer

  bool answers() const { return !target.empty() && error == 0; }
  std::string why() const;  ///< "connection refused", "no answer", "name not known"
};

/// Tries all at the same time for at most `wait` (names are looked up one after the other before).
std::vector<Reach> probe(const std::vector<std::string>& addresses, std::chrono::milliseconds wait);

/// Whether a service that uses TLS is there.
bool speaks_tls(const std::string& address, std::chrono::milliseconds wait);

/// Who listens on a port of this machine, as far as /proc shows it: "process 4711 (python) listens there".
std::string holder_of(int port);

std::string host_name();

}  // namespace lockstep::coordination
