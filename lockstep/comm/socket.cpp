#include "lockstep/comm/socket.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

Descriptor socket_for(const SocketAddress& address) {
  return Descriptor(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

std::string name_of(int socket, decltype(&::getsockname) end) {
  SocketAddress address;
  return end(socket, address.get(), &address.size) == 0 ? to_string(address) : "unknown";
}

// Calls move(offset), which is ::recv or ::send, until it has moved all bytes.
template <class Move>
bool move_all(int socket, short events, std::size_t size, Deadline deadline, const Move& move) {
  for (std::size_t moved = 0; moved < size;) {
    const ssize_t count = move(moved);
    if (count > 0) {
      moved += static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR) || !is_ready(socket, events, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string to_string(const SocketAddress& address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int flags = NI_NUMERICHOST | NI_NUMERICSERV;
  if (::getnameinfo(address.get(), address.size, host, sizeof host, port, sizeof port, flags) != 0) return "unknown";
  return address.bytes.ss_family == AF_INET6 ? str("[", host, "]:", port) : str(host, ":", port);
}

std::vector<SocketAddress> look_up(const Address& address) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  if (::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found) != 0) return {};
  std::vector<SocketAddress> all;
  // Hosts list the two families in different orders; the chief and its workers must choose the same.
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if (one->ai_family != family) continue;
      std::memcpy(&all.emplace_back().bytes, one->ai_addr, one->ai_addrlen);
      all.back().size = one->ai_addrlen;
    }
  }
  ::freeaddrinfo(found);
  return all;
}

Descriptor listen_at(const Address& address) {
  const auto all = look_up(address);
  errno = 0;
  if (all.empty()) return {};
  Descriptor made = socket_for(all.front());
  const int on = 1;
  // Without this, connections of a job that has just ended would keep the port taken for a minute.
  const bool reuses = made && ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
  const bool bound = reuses && ::bind(made.get(), all.front().get(), all.front().size) == 0;
  // Two sockets with that option can both be bound; only one of them can listen.
  return bound && ::listen(made.get(), 1024) == 0 ? std::move(made) : Descriptor();
}

std::string own_name(int socket) { return name_of(socket, ::getsockname); }
std::string peer_name(int socket) { return name_of(socket, ::getpeername); }

Descriptor begin_to_connect(const SocketAddress& address) {
  Descriptor made = socket_for(address);
  if (::connect(made.get(), address.get(), address.size) == 0 || errno == EINPROGRESS) return made;
  return {};
}

int connect_error(const Descriptor& socket, Deadline deadline) {
  if (!is_ready(socket.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

Descriptor connect_to(const Address& address, Deadline deadline) {
  const auto all = look_up(address);
  Descriptor made = all.empty() ? Descriptor() : begin_to_connect(all.front());
  return made && connect_error(made, deadline) == 0 ? std::move(made) : Descriptor();
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

bool is_ready(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  while (true) {
    const int result = ::poll(&entry, 1, poll_milliseconds(deadline));
    if (result > 0) return true;
    if (result == 0 && deadline.expired()) return false;
    if (result < 0 && errno != EINTR) return false;
  }
}

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<long long>(left, 60'000));
}

std::string system_text(int error_number) { return std::generic_category().message(error_number); }

}  // namespace lockstep
