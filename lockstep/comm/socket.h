#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_description.h"

// TCP sockets, all non-blocking.
namespace lockstep {

/// An address in the form of system calls.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

LOCKSTEP_EXPORT std::string to_string(const SocketAddress& address);  ///< "10.0.0.3:4711", "[::1]:4711"
LOCKSTEP_EXPORT std::string host_of(const SocketAddress& address);    ///< "10.0.0.3", "::1"

/// All addresses of a name, IPv4 before IPv6; empty if it is unknown.
LOCKSTEP_EXPORT std::vector<SocketAddress> look_up(const Address& address);

/// Listens at the first of them; port 0 is a free one. Empty with `errno` set on failure; 0 means that the name is
/// unknown.
LOCKSTEP_EXPORT Descriptor listen_at(const Address& address);

/// A connection that waited at a listening socket.
struct Arrival {
  Descriptor socket = {};  ///< empty: none waits
  SocketAddress from = {};
  bool no_room = false;  ///< the system has no room for another file: poll() would report this connection forever
};

/// Skips connections that were reset meanwhile.
LOCKSTEP_EXPORT Arrival accept_from(int listener);

/// "10.0.0.3:4711", this end or the other one.
LOCKSTEP_EXPORT std::string own_name(int socket);
LOCKSTEP_EXPORT std::string peer_name(int socket);

/// Begins to connect; empty, with `errno` set, if that fails at once.
LOCKSTEP_EXPORT Descriptor begin_to_connect(const SocketAddress& address);
/// Waits for the result; returns the system's error, 0 if the other side answered, ETIMEDOUT if it did not.
LOCKSTEP_EXPORT int connect_error(const Descriptor& socket, Deadline deadline);
/// Connects, and waits for it. Empty if there is no answer before the deadline.
LOCKSTEP_EXPORT Descriptor connect_to(const Address& address, Deadline deadline);

/// Reads or writes all of `size` bytes; false if that is not possible before the deadline.
LOCKSTEP_EXPORT bool read_all(int socket, void* data, std::size_t size, Deadline deadline);
LOCKSTEP_EXPORT bool write_all(int socket, const void* data, std::size_t size, Deadline deadline);

/// Waits until poll() reports one of `events`; false if it does not before the deadline.
LOCKSTEP_EXPORT bool is_ready(int socket, short events, Deadline deadline);

/// For poll(): milliseconds, rounded up, -1 forever.
LOCKSTEP_EXPORT int poll_milliseconds(Deadline deadline);

/// "No such file", without the races of strerror.
LOCKSTEP_EXPORT std::string system_text(int error_number);

// Addresses of cluster entries as seen from this machine.

/// Whether `address` names only this machine's loopback.
LOCKSTEP_EXPORT bool is_on_loopback(const Address& address);

/// The name of a port in messages, and how to get a different one.
struct PortWords {
  std::string name;
  Code code_if_taken;
  std::string help_if_taken;
  std::string help_with_host;
};

/// Listens at an address; port 0 is a free one. Throws L106 if it is in use, naming the process that holds it if /proc
/// shows it, or if the address is not this host's.
LOCKSTEP_EXPORT Descriptor hold_port(const Address& address, const PortWords& words);

/// The port of a worker's entry, to which no process connects: it is held so that a second process is noticed.
LOCKSTEP_EXPORT Descriptor hold_port_of_entry(const WorkerEntry& worker);
LOCKSTEP_EXPORT void close_waiting_connections(const Descriptor& held);

/// The result of connecting to an address.
struct Reach {
  std::string target = {};  ///< the numeric address, "127.0.0.1:2222"; empty: the name is unknown
  int error = 0;            ///< errno; ETIMEDOUT: no answer

  bool answers() const { return !target.empty() && error == 0; }
  LOCKSTEP_EXPORT std::string why() const;  ///< "connection refused", "no answer", "name not known"
};

/// Tries all at the same time for at most `wait` (names are looked up one after the other before).
LOCKSTEP_EXPORT std::vector<Reach> probe(const std::vector<Address>& addresses, std::chrono::milliseconds wait);

LOCKSTEP_EXPORT std::string host_name();

}  // namespace lockstep
