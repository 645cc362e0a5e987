#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/way_probe.h"

namespace lockstep::engine {

/// How long another worker's machine has been silent.
struct Silence {
  std::chrono::milliseconds on_link;          ///< since that machine last sent or acknowledged anything there
  std::chrono::milliseconds of_questions{0};  ///< since the first of the new connections that it did not answer
};
enum class Way { Open, Doubtful, Cut };

/// A network is cut if a link has been silent for 2.5 s and new connections were unanswered for 1.85 s: a pause of 1.5
/// s ends with an answer in time. A link without progress for 30 s is useless even if new connections are answered.
Way judge(const Silence& silence);

/// Every link carries a message at least this often, which the other machine acknowledges.
inline constexpr std::chrono::milliseconds kBeatInterval(500);

/// Watches connections to other workers. For one thread; never blocks.
class LinkWatch {
 public:
  using OnCut = std::function<void(int worker)>;

  void add(int rank, int socket, const std::string& address);

  /// Calls `on_cut` every quarter of a second for each worker that cannot be reached, while that is so. Cheap if called
  /// again soon.
  void look(const OnCut& on_cut);
  Deadline next_look() const { return next_; }
  bool has_cut() const;

 private:
  using Clock = Deadline::Clock;

  struct Watched {
    int rank = 0;
    int socket = -1;
    SocketAddress address = {};  // a port of its machine; a refusal by that port is an answer
    std::optional<WayProbe> probe = {};
    bool is_cut = false;
    Clock::time_point reported = {};
  };

  std::vector<Watched> watched_;
  Deadline next_ = Deadline::never();
};

}  // namespace lockstep::engine
