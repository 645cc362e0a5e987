#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/descriptor.h"
#include "lockstep/comm/unproven.h"

namespace lockstep::coordination {

/// Accepts connections at the chief's port in place of gRPC, whose own listener stops for good when `accept` fails. A
/// connection is passed on once it has sent something, and closed if its owner has not proved the job key within 5 s.
/// Until then it occupies one of a limited number of places, whatever owns the socket by then.
class Reception {
 public:
  /// `pass_on` takes over a socket. Called on a thread of this object, from `start` to `stop`.
  Reception(Descriptor listener, Places places, std::function<void(int socket)> pass_on);
  ~Reception() { stop(); }

  void start();
  void stop();  ///< passes on nothing more

  /// The owner of this connection, "10.0.0.3:4711", knows the job key: it may stay.
  void proved(const std::string& name);
  void set_places(Places places);

 private:
  struct Visitor : Unproven {
    std::string name = {};
    Descriptor socket = {};    // until it is passed on
    int number = -1;           // file descriptor of the socket after that
    std::uint64_t cookie = 0;  // shows whether the number still refers to this socket
  };

  void run();
  void accept_all(std::vector<int>& spoke);
  /// Whether it stays; one that has sent something is added to those passed on.
  bool look_at(Visitor& visitor, std::vector<int>& spoke);
  static void close(Visitor& visitor);

  const Descriptor listener_;
  const std::function<void(int)> pass_on_;
  const Descriptor stop_;
  std::mutex mutex_;  // guards what follows
  Places places_;
  std::vector<Visitor> visitors_;
  ClosedCount closed_;
  bool is_full_ = false;  // the system has no room for another socket
  std::thread thread_;
};

}  // namespace lockstep::coordination
