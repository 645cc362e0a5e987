#include "lockstep/comm/port.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/socket.h"

namespace lockstep {
namespace {

// Sockets that listen on a port, as /proc shows them among the files of a process.
std::set<std::string> listeners_on(int port) {
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line, local, state, inode, skipped;
    for (std::getline(lines, line); std::getline(lines, line);) {
      std::istringstream fields(line);
      fields >> skipped >> local >> skipped >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      const bool same_port = std::strtol(local.substr(local.rfind(':') + 1).c_str(), nullptr, 16) == port;
      if (state == "0A" && same_port) sockets.insert("socket:[" + inode + "]");  // 0A: listens
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

bool is_on_loopback(const std::string& address) {
  const auto all = look_up(parse_address(address));
  const auto is_own = [](const SocketAddress& one) { return is_loopback(parse_address(to_string(one)).host); };
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

Descriptor hold_port_of_entry(const std::string& worker, const std::string& address) {
  const Address entry = parse_address(address);
  return hold_port(
      entry,
      {.name = str("port ", entry.port, " of ", worker, " (", address, ")"),
       .code_if_taken = Code::Unavailable,
       .help_if_taken = "end that process, or give this worker another port in the cluster of every worker",
       .help_with_host = "check the task index of this process and the spelling of its entry, which must name the "
                         "host it runs on"});
}

void drop_strangers(const Descriptor& held) {
  for (int i = 0; held && i < 64; ++i) {
    if (!Descriptor(::accept4(held.get(), nullptr, nullptr, SOCK_CLOEXEC))) return;
  }
}

std::string Reach::why() const {
  if (target.empty()) return "name not known";
  return error == ETIMEDOUT ? "no answer" : error == ECONNREFUSED ? "connection refused" : system_text(error);
}

std::vector<Reach> probe(const std::vector<std::string>& addresses, std::chrono::milliseconds wait) {
  std::vector<Reach> reaches;
  std::vector<Descriptor> sockets;
  for (const std::string& address : addresses) {
    const auto all = look_up(parse_address(address));
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

bool speaks_tls(const std::string& address, std::chrono::milliseconds wait) {
  // The first message of a TLS 1.2 client: a service that uses TLS answers with a record of its own.
  constexpr unsigned char kBegin[] = {0x16, 3, 1, 0, 0x4f, 1, 0, 0, 0x4b, 3, 3};                  // and 32 random bytes
  constexpr unsigned char kEnd[] = {0, 0,  4, 0xc0, 0x2b, 0xc0, 0x2f, 1,    0, 0,    0x1e,        // ciphers
                                    0, 10, 0, 8,    0,    6,    0,    0x1d, 0, 0x17, 0,    0x18,  // curves
                                    0, 13, 0, 14,   0,    12,   4,    3,    5, 3,    6,    3,     // signatures
                                    8, 4,  8, 7,    4,    1};
  std::string greeting(std::begin(kBegin), std::end(kBegin));
  greeting.append(32, 'r').append(std::begin(kEnd), std::end(kEnd));
  const Deadline deadline = Deadline::after(wait);
  const Descriptor socket = connect_to(parse_address(address), deadline);
  char kind = 0;
  return socket && write_all(socket.get(), greeting.data(), greeting.size(), deadline) &&
         read_all(socket.get(), &kind, 1, deadline) && (kind == 0x15 || kind == 0x16);  // an alert, or a handshake
}

std::string host_name() {
  char name[256] = "unknown";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep
