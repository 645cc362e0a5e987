#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

/// "[::1]:2222" as {"::1", "2222"}; throws without a port.
std::pair<std::string, std::string> split_address(const std::string& address);

/// Whether `address` names this machine's loopback and nothing else.
bool is_loopback(const std::string& address);

/// Keeps the port of a cluster entry, and drops whoever connects to it.
class HeldPort {
 public:
  HeldPort() = default;
  ~HeldPort() { release(); }
  HeldPort(HeldPort&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  HeldPort& operator=(HeldPort&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }

  /// Throws L106 if it is taken, with the process that holds it where /proc shows it, or if the address is not this host's.
  static HeldPort hold(const Member& entry);

  void drop_strangers();
  void release();

 private:
  int socket_ = -1;
};

/// What a connection to an address would meet.
struct Reach {
  bool answers = false;
  std::string why = {};     ///< "connection refused", "no answer", "name not known"
  std::string target = {};  ///< the numeric address that answered, "127.0.0.1:2222"
};

/// Tries all at the same time for at most `wait` (names are looked up one after the other before).
std::vector<Reach> probe(const std::vector<std::string>& addresses, std::chrono::milliseconds wait);

/// The first numeric address of "host:port", IPv4 before IPv6; empty if the name is not known.
std::string numeric_address(const std::string& address);

std::string host_name();

}  // namespace lockstep::coordination
