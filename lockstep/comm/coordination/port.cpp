#include "lockstep/comm/coordination/port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "lockstep/base/text.h"

namespace lockstep::coordination {
namespace {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int family() const { return bytes.ss_family; }
};

std::vector<SocketAddress> look_up(const std::string& address) {
  const auto [host, port] = split_address(address);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &wanted, &found) != 0) return {};
  std::vector<SocketAddress> all;
  // Hosts list the two families in different orders; the chief and its workers must choose the same.
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if (one->ai_family != family) continue;
      SocketAddress copy;
      std::memcpy(&copy.bytes, one->ai_addr, one->ai_addrlen);
      copy.size = one->ai_addrlen;
      all.push_back(copy);
    }
  }
  ::freeaddrinfo(found);
  return all;
}

std::string text_of(const SocketAddress& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(address.get(), address.size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return address.family() == AF_INET6 ? str("[", host, "]:", port) : str(host, ":", port);
}

// The process that listens on `port`, as far as /proc shows it: sockets of other users have an owner but no visible process.
std::string holder_of(const std::string& port) {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      const auto colon = local.rfind(':');
      if (state != "0A" || colon == std::string::npos) continue;  // 0A: listens
      if (std::to_string(std::strtol(local.c_str() + colon + 1, nullptr, 16)) == port)
        inodes.insert("socket:[" + inode + "]");
    }
  }
  std::error_code ignored;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    for (std::filesystem::directory_iterator file(process.path() / "fd", ignored), end; !ignored && file != end;
         file.increment(ignored)) {
      const auto target = std::filesystem::read_symlink(file->path(), ignored);
      if (!inodes.contains(target.string())) continue;
      std::string program;
      std::getline(std::ifstream(process.path() / "comm") >> std::ws, program);
      return str("process ", pid, " (", program, ") listens there");
    }
  }
  return inodes.empty() ? "no listening process is visible in /proc" : "the process belongs to another user";
}

[[noreturn]] void refuse_port(const Member& entry, const std::string& port, int error) {
  const std::string who = str(entry.name, " (", entry.address, ")");
  if (error == EADDRINUSE) {
    throw Unavailable(errors::kPortInUse,
                      {.what = str("port ", port, " of ", who, " is in use"),
                       .seen = holder_of(port),
                       .help = "end that process, or give this worker another port in the cluster of every worker"});
  }
  if (error == EADDRNOTAVAIL) {
    throw InvalidArgument(errors::kPortInUse,
                          {.what = str(who, " is not an address of this host"),
                           .where = str("on host ", host_name()),
                           .help = "check the task index of this process: its entry must name the host it runs on"});
  }
  throw Unavailable(errors::kPortInUse, {.what = str("port ", port, " of ", who, " cannot be bound"),
                                         .seen = std::generic_category().message(error),
                                         .help = "ports below 1024 need special rights; choose a higher one"});
}

}  // namespace

std::pair<std::string, std::string> split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  const bool bracketed = !address.empty() && address.front() == '[';
  const bool complete = colon != std::string::npos && colon + 1 < address.size() && colon > 0 &&
                        address.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                        (!bracketed || address[colon - 1] == ']');
  if (!complete) {
    throw InvalidArgument(errors::kClusterDescription,
                          {.what = str("an address must be host:port, got \"", address, "\""),
                           .help = "write entries as \"10.0.0.3:2222\", \"name:2222\" or \"[::1]:2222\""});
  }
  std::string host = address.substr(0, colon);
  if (bracketed) host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

bool is_loopback(const std::string& address) {
  const auto all = look_up(address);
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const SocketAddress& one) {
    if (one.family() == AF_INET) {
      return (ntohl(reinterpret_cast<const sockaddr_in*>(&one.bytes)->sin_addr.s_addr) >> 24) == 127;
    }
    return one.family() == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&one.bytes)->sin6_addr);
  });
}

HeldPort HeldPort::hold(const Member& entry) {
  const auto all = look_up(entry.address);
  if (all.empty()) {
    throw InvalidArgument(errors::kPortInUse,
                          {.what = str("the name of ", entry.name, " (", entry.address, ") is not known"),
                           .where = str("on host ", host_name()),
                           .help = "check the entry's spelling, DNS and /etc/hosts"});
  }
  const std::string port = split_address(entry.address).second;
  HeldPort held;
  held.socket_ = ::socket(all.front().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  // Without this, connections of a job that has just ended would keep the port taken for a minute.
  ::setsockopt(held.socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Two sockets with that option can both be bound; only one of them can listen.
  if (held.socket_ < 0 || ::bind(held.socket_, all.front().get(), all.front().size) != 0 ||
      ::listen(held.socket_, 16) != 0) {
    refuse_port(entry, port, errno);
  }
  return held;
}

void HeldPort::drop_strangers() {
  if (socket_ < 0) return;
  for (int i = 0; i < 64; ++i) {
    const int stranger = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (stranger < 0) return;
    ::close(stranger);
  }
}

void HeldPort::release() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

std::vector<Reach> probe(const std::vector<std::string>& addresses, std::chrono::milliseconds wait) {
  std::vector<Reach> reaches(addresses.size());
  std::vector<pollfd> polls;
  std::vector<std::size_t> owners;
  const Deadline deadline = Deadline::after(wait);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto all = look_up(addresses[i]);
    reaches[i].why = all.empty() ? "name not known" : "no answer";
    if (all.empty()) continue;
    reaches[i].target = text_of(all.front());
    const int attempt = ::socket(all.front().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt < 0) continue;
    if (::connect(attempt, all.front().get(), all.front().size) != 0 && errno != EINPROGRESS) {
      reaches[i].why = errno == ECONNREFUSED ? "connection refused" : std::generic_category().message(errno);
      ::close(attempt);
      continue;
    }
    polls.push_back({.fd = attempt, .events = POLLOUT, .revents = 0});
    owners.push_back(i);
  }
  for (std::size_t open = polls.size(); open > 0;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
    if (::poll(polls.data(), polls.size(), static_cast<int>(left)) <= 0) break;
    for (std::size_t k = 0; k < polls.size(); ++k) {
      if (polls[k].fd < 0 || polls[k].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(polls[k].fd, SOL_SOCKET, SO_ERROR, &error, &size);
      Reach& reach = reaches[owners[k]];
      reach.answers = error == 0;
      reach.why = error == 0              ? ""
                  : error == ECONNREFUSED ? "connection refused"
                                          : std::generic_category().message(error);
      ::close(std::exchange(polls[k].fd, -1));
      --open;
    }
  }
  for (const pollfd& one : polls) {
    if (one.fd >= 0) ::close(one.fd);
  }
  return reaches;
}

std::string numeric_address(const std::string& address) {
  const auto all = look_up(address);
  return all.empty() ? std::string() : text_of(all.front());
}

std::string host_name() {
  char name[256] = "unknown";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep::coordination
