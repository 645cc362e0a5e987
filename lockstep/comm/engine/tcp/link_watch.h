#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/comm/socket.h"

namespace lockstep::engine {

/// What is known of the way to another worker's machine.
struct Silence {
  std::chrono::milliseconds on_link;  ///< since that machine last sent or acknowledged anything there
  /// since it last answered a new connection; nothing: it never did, or was not asked
  std::optional<std::chrono::milliseconds> of_answers = {};
};
enum class Way { Open, Doubtful, Cut };

/// A way is cut when nothing has come through for 2.6 s. After a pause TCP may wait longer than that until it sends again, so
/// new connections tell a pause from a cut. A link on which nothing has moved for 30 s is of no use, whoever answers.
Way judge(const Silence& silence);

/// Watches connections to other workers, those that only receive included: the system asks on each of them every second
/// whether the other machine is there. Used by one thread; never blocks.
class LinkWatch {
 public:
  using OnCut = std::function<void(int worker)>;

  void add(int rank, int socket, const std::string& address);

  /// Calls `on_cut` once for every worker to which the way is cut. Cheap if called again soon.
  void look(const OnCut& on_cut);
  Deadline next_look() const { return next_; }

 private:
  using Clock = Deadline::Clock;

  struct Watched {
    int rank = 0;
    int socket = -1;
    SocketAddress address = {};  // of a port of its machine; that nobody listens there is an answer
    Descriptor attempt = {};
    Clock::time_point began = {};
    std::optional<Clock::time_point> answered = {};
    bool is_cut = false;
  };

  static void ask(Watched& watched, Clock::time_point now);

  std::vector<Watched> watched_;
  Deadline next_ = Deadline::never();
};

}  // namespace lockstep::engine
