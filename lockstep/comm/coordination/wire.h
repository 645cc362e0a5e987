#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/coordination/messages.h"

namespace lockstep::coordination {

/// A member's end of its stream to the chief.
class Wire {
 public:
  /// Called by threads of gRPC; `ended` once, as the last, unless `cut` came first.
  struct Callbacks {
    std::function<void(const wire::FromChief&)> received;
    std::function<void(const std::string& why)> ended;
  };

  virtual ~Wire() = default;
  virtual void send(const wire::ToChief& message) = 0;  ///< not under a lock that the callbacks take
  virtual void cut() = 0;  ///< ends the stream; no callback is called after it has returned
  /// Whether what has the port speaks gRPC, as a chief does. Others may never say a word.
  virtual bool is_heard() const = 0;
};

/// To the chief at a numeric address. `host` is its name in the cluster, which a certificate must have.
std::unique_ptr<Wire> connect(const std::string& numeric, const std::string& host, const TlsFiles& tls,
                              Wire::Callbacks callbacks);

}  // namespace lockstep::coordination
