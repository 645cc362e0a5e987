#include "lockstep/comm/socket.h"

#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"

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

// Sockets listening on a port, as /proc shows them among the files of a process.
std::set<std::string> listeners_on(int port) {
  constexpr unsigned kListens = 0x0A;
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      unsigned local = 0, state = 0, inode = 0;
      const auto* const fields = " %*u: %*[^:]:%x %*s %x %*s %*s %*s %*u %*u %u";
      const bool is_socket = std::sscanf(line.c_str(), fields, &local, &state, &inode) == 3;
      if (is_socket && state == kListens && static_cast<int>(local) == port)
        sockets.insert(str("socket:[", inode, "]"));
    }
  }
  return sockets;
}

// As far as /proc shows it: "process 4711 (python) listens there".
std::string holder_of(int port) {
  namespace fs = std::filesystem;
  const std::set<std::string> sockets = listeners_on(port);  // processes of other users do not show theirs
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    for (fs::directory_iterator file(process.path() / "fd", ignored), end; !ignored && file != end;
         file.increment(ignored)) {
      if (!sockets.contains(fs::read_symlink(file->path(), ignored).string())) continue;
      std::string program;
      std::getline(std::ifstream(process.path() / "comm") >> std::ws, program);
      return str(pid == std::to_string(::getpid()) ? "this process itself, " : "process ", pid, " (", program,
                 ") listens there");
    }
  }
  return sockets.empty() ? "no listening process is visible in /proc" : "the process belongs to another user";
}

}  // namespace

std::string to_string(const SocketAddress& address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int flags = NI_NUMERICHOST | NI_NUMERICSERV;
  if (::getnameinfo(address.get(), address.size, host, sizeof host, port, sizeof port, flags) != 0) return "unknown";
  return address.bytes.ss_family == AF_INET6 ? str("[", host, "]:", port) : str(host, ":", port);
}

std::string host_of(const SocketAddress& address) {
  char host[NI_MAXHOST];
  return ::getnameinfo(address.get(), address.size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0 ? host
                                                                                                        : "unknown";
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
  // Without this, connections of a job that has just ended would keep the port busy for a minute.
  const bool reuses = made && ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
  const bool bound = reuses && ::bind(made.get(), all.front().get(), all.front().size) == 0;
  // Two sockets with that option can both be bound; only one of them can listen.
  return bound && ::listen(made.get(), 1024) == 0 ? std::move(made) : Descriptor();
}

Arrival accept_from(int listener) {
  // Only errors of a connection that ended while it waited.
  constexpr std::array kGone{ECONNABORTED, EINTR,        EPROTO,      ENETDOWN, ENOPROTOOPT, EHOSTDOWN,
                             ENONET,       EHOSTUNREACH, ENETUNREACH, EPERM,    ETIMEDOUT};
  Arrival arrival;
  do {
    arrival.from.size = sizeof arrival.from.bytes;
    arrival.socket =
        Descriptor(::accept4(listener, arrival.from.get(), &arrival.from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  } while (!arrival.socket && std::ranges::count(kGone, errno) != 0);
  arrival.no_room = !arrival.socket && errno != EAGAIN;
  return arrival;
}

std::string own_name(int socket) { return name_of(socket, ::getsockname); }
std::string peer_name(int socket) { return name_of(socket, ::getpeername); }

Descriptor begin_to_connect(const SocketAddress& address) {
  Descriptor made = socket_for(address);
  if (::connect(made.get(), address.get(), address.size) == 0 || errno == EINPROGRESS) return made;
  const int error = errno;
  made.close();
  errno = error;
  return made;
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
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, poll_milliseconds(deadline));
  } while (ready == 0 ? !deadline.expired() : ready < 0 && errno == EINTR);
  return ready > 0;
}

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<long long>(left, 60'000));
}

std::string system_text(int error_number) { return std::generic_category().message(error_number); }

bool is_on_loopback(const Address& address) {
  const auto all = look_up(address);
  const auto is_own = [](const SocketAddress& one) { return is_loopback(host_of(one)); };
  return !all.empty() && std::ranges::all_of(all, is_own);
}

Descriptor hold_port(const Address& address, const PortWords& words) {
  Descriptor held = listen_at(address);
  if (held) return held;
  const int error = errno;
  if (error == EADDRINUSE) {
    throw_error(words.code_if_taken, errors::kPortInUse,
                {.what = words.name + " is in use", .seen = holder_of(address.port), .help = words.help_if_taken});
  }
  if (error == 0 || error == EADDRNOTAVAIL) {
    const auto* const what = error == 0 ? ": the name of its host is not known" : " is not an address of this host";
    throw InvalidArgument(
        errors::kPortInUse,
        {.what = words.name + what, .where = str("on host ", host_name()), .help = words.help_with_host});
  }
  throw Unavailable(errors::kPortInUse, {.what = words.name + " cannot be bound",
                                         .seen = system_text(error),
                                         .help = "ports below 1024 need special rights; choose a higher one"});
}

Descriptor hold_port_of_entry(const WorkerEntry& worker) {
  return hold_port(
      worker.address,
      {.name = str("port ", worker.address.port, " of ", to_string(worker)),
       .code_if_taken = Code::Unavailable,
       .help_if_taken = "end that process, or give this worker another port in the cluster of every worker",
       .help_with_host = "check the task index of this process and the spelling of its entry, which must name the "
                         "host it runs on"});
}

void close_waiting_connections(const Descriptor& held) {
  for (int i = 0; held && i < 1024 && accept_from(held.get()).socket; ++i) {
  }
}

std::string Reach::why() const {
  if (target.empty()) return "name not known";
  return error == ETIMEDOUT ? "no answer" : error == ECONNREFUSED ? "connection refused" : system_text(error);
}

std::vector<Reach> probe(const std::vector<Address>& addresses, std::chrono::milliseconds wait) {
  std::vector<Reach> reaches;
  std::vector<Descriptor> sockets;
  for (const Address& address : addresses) {
    const auto all = look_up(address);
    reaches.push_back({.target = all.empty() ? "" : to_string(all.front())});
    sockets.push_back(all.empty() ? Descriptor() : begin_to_connect(all.front()));
    if (!sockets.back()) reaches.back().error = errno;
  }
  const Deadline deadline = Deadline::after(wait);
  for (std::size_t i = 0; i < reaches.size(); ++i) {
    if (sockets[i]) reaches[i].error = connect_error(sockets[i], deadline);
  }
  return reaches;
}

std::string host_name() {
  char name[256] = "unknown";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep
