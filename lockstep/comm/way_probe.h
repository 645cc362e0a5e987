#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/socket.h"

// Distinguishes a pause of the network from a cut. After a pause TCP waits up to as long again before it retransmits,
// so silence on an old connection proves little. A new connection is answered as soon as the network is back.
namespace lockstep {

/// The outcome of probing another machine since it fell silent.
struct LOCKSTEP_EXPORT Answers {
  using Clock = Deadline::Clock;
  using Time = Clock::time_point;

  /// Probes without an answer for this long show that the network is interrupted.
  static constexpr std::chrono::milliseconds kGap{250};

  std::optional<Time> last_question = {};
  std::optional<Time> last_answer = {};
  std::optional<Time> unanswered_since = {};  ///< the first probe after the last answer
  std::optional<Time> resumed = {};           ///< the last answer that ended a gap

  void asked(Time now);
  void answered(Time now);
  /// From the first unanswered probe to the last; zero if that one was answered. Time without probes or checks for
  /// answers does not count.
  Clock::duration unanswered() const;
};

/// Probes a machine every 100 ms. A probe is an attempt to connect; a refusal is an answer too.
class LOCKSTEP_EXPORT WayProbe {
 public:
  explicit WayProbe(const SocketAddress& address) : address_(address) {}

  /// Collects answers and probes again if it is time. Never blocks; call it at least every 50 ms.
  void ask(Answers::Time now);
  const Answers& answers() const { return answers_; }

 private:
  struct Attempt {
    Descriptor socket = {};
    Answers::Time began = {};
  };

  SocketAddress address_;
  std::vector<Attempt> attempts_;
  Answers answers_;
};

}  // namespace lockstep
