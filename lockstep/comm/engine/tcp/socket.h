#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"

namespace lockstep::engine {

/// A connection to another worker.
struct Connection {
  Descriptor socket = {};
  pid_t neighbour = 0;  ///< if not 0, the process at the other end: both may
                        ///< read each other's memory
};

/// Listens at `address` alone (a name or a number) and at `port`, or at a free one for 0. L106 if it is taken.
Descriptor listen_at(const std::string& address, int port);

/// "10.0.0.3:4711" of the own end or of the other one.
std::string own_name(int socket);
std::string peer_name(int socket);

/// Connects to what `own_name` of the listener said. An empty descriptor if nobody answers there.
Descriptor connect_to(const std::string& name, Deadline deadline);

/// Reads or writes all of `size` bytes of a non-blocking socket; false if that is not possible before the deadline.
bool read_all(int socket, void* data, std::size_t size, Deadline deadline);
bool write_all(int socket, const void* data, std::size_t size, Deadline deadline);

/// For poll(): milliseconds, rounded up, -1 for ever.
int poll_milliseconds(Deadline deadline);

/// "No such file", without the races of strerror.
std::string system_text(int error_number);

}  // namespace lockstep::engine
