#include "lockstep/comm/engine/tcp/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <system_error>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/status.h"

namespace lockstep::engine {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (result != 0)
    throw Failure(Code::InvalidArgument, errors::kPortInUse,
                  {.what = str("the address ", host, " cannot be used: ", ::gai_strerror(result)),
                   .help = "set bind_address to an address of this machine"});
  return Addresses(list);
}

std::string name_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
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

}  // namespace

std::string system_text(int error_number) { return std::generic_category().message(error_number); }

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<long long>(left, 60'000));
}

Descriptor listen_at(const std::string& address, int port) {
  const Addresses list = resolve(address, std::to_string(port), AI_PASSIVE);
  int reason = 0;
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    Descriptor made(::socket(each->ai_family, each->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, each->ai_protocol));
    // A restarted worker takes its port again while old connections still wind down.
    const int on = 1;
    if (made && ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(made.get(), each->ai_addr, each->ai_addrlen) == 0 && ::listen(made.get(), 1024) == 0)
      return made;
    reason = errno;
  }
  throw Failure(
      reason == EADDRINUSE ? Code::AlreadyExists : Code::Unavailable, errors::kPortInUse,
      {.what = str("cannot listen at ", address, ":", port, " for data: ", system_text(reason)),
       .help = reason == EADDRINUSE ? "stop the program that holds the port, or set data_port to another one (0: any)"
                                    : "set bind_address to an address of this machine"});
}

std::string own_name(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  return name_of(address, size);
}

std::string peer_name(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  return name_of(address, size);
}

Descriptor connect_to(const std::string& name, Deadline deadline) {
  const std::size_t colon = name.rfind(':');
  if (colon == std::string::npos) return {};
  std::string host = name.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const Addresses list = resolve(host, name.substr(colon + 1), AI_NUMERICHOST);
  const addrinfo& target = *list;
  Descriptor made(::socket(target.ai_family, target.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, target.ai_protocol));
  if (!made) return {};
  if (::connect(made.get(), target.ai_addr, target.ai_addrlen) != 0) {
    if (errno != EINPROGRESS || !ready(made.get(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return {};
  }
  return made;
}

void prepare_connection(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

bool read_all(int socket, void* data, std::size_t size, Deadline deadline) {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count = ::recv(socket, to, size, 0);
    if (count > 0) {
      to += count;
      size -= static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR) || !ready(socket, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

bool write_all(int socket, const void* data, std::size_t size, Deadline deadline) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = ::send(socket, from, size, MSG_NOSIGNAL);
    if (count >= 0) {
      from += count;
      size -= static_cast<std::size_t>(count);
    } else if ((errno != EAGAIN && errno != EINTR) || !ready(socket, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::engine
