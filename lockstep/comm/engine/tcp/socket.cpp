#include "lockstep/comm/engine/tcp/socket.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <system_error>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/cluster/address.h"

namespace lockstep::engine {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (result != 0)
    throw InvalidArgument(errors::kPortInUse,
                          {.what = str("the address ", host, " cannot be used: ", ::gai_strerror(result)),
                           .help = "set bind_address to an address of this machine"});
  return Addresses(list);
}

Descriptor socket_for(const addrinfo& target) {
  return Descriptor(::socket(target.ai_family, target.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, target.ai_protocol));
}

std::string name_of(int socket, decltype(&::getsockname) end) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const bytes = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (end(socket, bytes, &size) != 0 ||
      ::getnameinfo(bytes, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown";
  return address.ss_family == AF_INET6 ? str("[", host, "]:", port) : str(host, ":", port);
}

// Waits until the socket is ready for `events`.
bool ready(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  while (true) {
    const int result = ::poll(&entry, 1, poll_milliseconds(deadline));
    if (result > 0) return true;
    if (result == 0 && deadline.expired()) return false;
    if (result < 0 && errno != EINTR) return false;
  }
}

// Calls move(offset), which is ::recv or ::send, until it has moved all bytes.
template <class Move>
bool move_all(int socket, short events, std::size_t size, Deadline deadline, const Move& move) {
  for (std::size_t moved = 0; moved < size;) {
    const ssize_t count = move(moved);
    if (count > 0) {
      moved += static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR) || !ready(socket, events, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string system_text(int error_number) { return std::generic_category().message(error_number); }

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<long long>(left, 60'000));
}

Descriptor listen_at(const std::string& address, int port) {
  const Addresses list = resolve(address, port, AI_PASSIVE);
  int reason = 0;
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    Descriptor made = socket_for(*each);
    // A restarted worker takes its port again while old connections still wind down.
    const int on = 1;
    if (made && ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(made.get(), each->ai_addr, each->ai_addrlen) == 0 && ::listen(made.get(), 1024) == 0)
      return made;
    reason = errno;
  }
  throw_error(
      reason == EADDRINUSE ? Code::AlreadyExists : Code::Unavailable, errors::kPortInUse,
      {.what = reason == EADDRINUSE ? str("the data port ", address, ":", port, " is in use")
                                    : str("cannot listen at ", address, ":", port, " for data: ", system_text(reason)),
       .help = reason == EADDRINUSE ? "stop the program that holds it, or set data_port to another one (0: any)"
                                    : "set bind_address to an address of this machine"});
}

std::string own_name(int socket) { return name_of(socket, ::getsockname); }
std::string peer_name(int socket) { return name_of(socket, ::getpeername); }

Descriptor connect_to(const std::string& name, Deadline deadline) {
  const Address address = parse_address(name);
  const Addresses list = resolve(address.host, address.port, AI_NUMERICHOST);
  Descriptor made = socket_for(*list);
  if (!made) return {};
  if (::connect(made.get(), list->ai_addr, list->ai_addrlen) != 0) {
    if (errno != EINPROGRESS || !ready(made.get(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return {};
  }
  return made;
}

bool read_all(int socket, void* data, std::size_t size, Deadline deadline) {
  return move_all(socket, POLLIN, size, deadline,
                  [&](std::size_t at) { return ::recv(socket, static_cast<char*>(data) + at, size - at, 0); });
}

bool write_all(int socket, const void* data, std::size_t size, Deadline deadline) {
  return move_all(socket, POLLOUT, size, deadline, [&](std::size_t at) {
    return ::send(socket, static_cast<const char*>(data) + at, size - at, MSG_NOSIGNAL);
  });
}

}  // namespace lockstep::engine
