#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/coordination/messages.h"

// The two ends of a stream. Only wire.cpp and server.cpp, which implement them, depend on gRPC.
namespace lockstep::coordination {

/// A member's end of its stream to the chief.
class Wire {
 public:
  /// Called on gRPC threads; `ended` once, as the last, unless `cut` came first.
  struct Callbacks {
    std::function<void(const wire::FromChief&)> received;
    std::function<void(const std::string& why)> ended;
  };

  virtual ~Wire() = default;
  virtual void send(const wire::ToChief& message) = 0;  ///< not under a lock that the callbacks take
  virtual void cut() = 0;                               ///< ends the stream; no callback is called after it returned
  /// Whether the process at the port uses gRPC, as a chief does. Others may never answer.
  virtual bool is_heard() const = 0;
};

/// Connects to the chief at a numeric address. `host` is its name in the cluster, which a certificate must contain.
std::unique_ptr<Wire> connect(const std::string& numeric, const std::string& host, const TlsFiles& tls,
                              Wire::Callbacks callbacks);

class Chief;

/// The service in the chief's process: serves the port of its entry and drives the Chief.
class Server {
 public:
  /// `port`: listens on the address of the chief's entry. Throws L106 if gRPC rejects the options.
  static std::unique_ptr<Server> start(const JoinOptions& options, const std::string& key, Descriptor port);
  virtual ~Server() = default;  ///< sends queued messages for at most a moment, then ends all sessions

  /// One call at a time; the chief's messages go out afterwards.
  virtual void with_chief(FunctionRef<void(Chief&)> action) = 0;

  /// Numeric hosts of expected workers: floods from other hosts cannot displace them.
  virtual void keep_places_for(const std::vector<std::string>& hosts) = 0;

  /// Waits, at most a moment, until queued messages have been handed to the network.
  virtual void flush() = 0;
};

}  // namespace lockstep::coordination
