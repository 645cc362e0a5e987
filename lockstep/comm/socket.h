#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/address.h"

// TCP sockets, none of which blocks.
namespace lockstep {

/// An address as the system's calls want it.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

LOCKSTEP_EXPORT std::string to_string(const SocketAddress& address);  ///< "10.0.0.3:4711", "[::1]:4711"

/// All that a name stands for, IPv4 before IPv6; empty if it is not known.
LOCKSTEP_EXPORT std::vector<SocketAddress> look_up(const Address& address);

/// Listens at the first of them; port 0 is a free one. Empty with `errno` set if that cannot be; 0 stands for a name that
/// is not known.
LOCKSTEP_EXPORT Descriptor listen_at(const Address& address);

/// "10.0.0.3:4711" of the own end or of the other one.
LOCKSTEP_EXPORT std::string own_name(int socket);
LOCKSTEP_EXPORT std::string peer_name(int socket);

/// Begins to connect; `connect_error` waits for the end and returns the error of the system: 0 if the other side answered,
/// ETIMEDOUT if it did not.
LOCKSTEP_EXPORT Descriptor begin_to_connect(const SocketAddress& address);
LOCKSTEP_EXPORT int connect_error(const Descriptor& socket, Deadline deadline);

/// Connects, and waits for it. Empty if there is no answer before the deadline.
LOCKSTEP_EXPORT Descriptor connect_to(const Address& address, Deadline deadline);

/// Reads or writes all of `size` bytes; false if that is not possible before the deadline.
LOCKSTEP_EXPORT bool read_all(int socket, void* data, std::size_t size, Deadline deadline);
LOCKSTEP_EXPORT bool write_all(int socket, const void* data, std::size_t size, Deadline deadline);

/// Waits until poll() sees one of `events`; false if it does not before the deadline.
LOCKSTEP_EXPORT bool is_ready(int socket, short events, Deadline deadline);

/// For poll(): milliseconds, rounded up, -1 for ever.
LOCKSTEP_EXPORT int poll_milliseconds(Deadline deadline);

/// "No such file", without the races of strerror.
LOCKSTEP_EXPORT std::string system_text(int error_number);

}  // namespace lockstep
