#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

/// The service in the chief's process: listens on its entry's address and drives the Chief.
class Server {
 public:
  /// Throws L106 if the address cannot be had.
  Server(const JoinOptions& options, const std::string& key);
  ~Server();

  std::vector<Member> missing() const;
  void announce(const std::string& missing_text);
  void fail(const Failure& failure);
  std::vector<std::string> others_here() const;

  /// Waits, at most a moment, until what is queued has been handed to the network.
  void flush();

  /// Sends what is queued for at most a moment, then ends all sessions.
  void shut_down();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep::coordination
