#pragma once

#include <memory>
#include <string>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/coordination/coordinator.h"

namespace lockstep::coordination {

class Chief;

/// The service in the chief's process: listens on its entry's address and drives the Chief.
class Server {
 public:
  /// Throws L106 if it cannot listen there.
  static std::unique_ptr<Server> start(const JoinOptions& options, const std::string& key);
  virtual ~Server() = default;  ///< sends what is queued for at most a moment, then ends all sessions

  /// One call at a time; what the chief has to say goes out afterwards.
  virtual void with_chief(FunctionRef<void(Chief&)> action) = 0;

  /// Waits, at most a moment, until what is queued has been handed to the network.
  virtual void flush() = 0;
};

}  // namespace lockstep::coordination
