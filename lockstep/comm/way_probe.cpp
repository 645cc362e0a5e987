#include "lockstep/comm/way_probe.h"

#include <poll.h>

#include <cerrno>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval(100);
constexpr milliseconds kAttempt(900);  // after a second the system would retransmit the same probe
constexpr milliseconds kStall(250);    // this thread was suspended: probes it did not send prove nothing

}  // namespace

void Answers::asked(Time now) {
  if (!unanswered_since || now - *last_question > kStall) unanswered_since = now;
  last_question = now;
}

void Answers::answered(Time now) {
  if (unanswered() >= kGap) resumed = now;
  last_answer = now;
  unanswered_since.reset();
}

Answers::Clock::duration Answers::unanswered() const {
  return unanswered_since ? *last_question - *unanswered_since : Clock::duration(0);
}

void WayProbe::ask(Answers::Time now) {
  std::erase_if(attempts_, [&](const Attempt& attempt) {
    if (!is_ready(attempt.socket.get(), POLLOUT, Deadline::at(now))) return now - attempt.began > kAttempt;
    const int error = connect_error(attempt.socket, Deadline::at(now));
    if (error == 0 || error == ECONNREFUSED) answers_.answered(now);
    return true;
  });
  if (answers_.last_question && now - *answers_.last_question < kInterval) return;
  answers_.asked(now);
  Descriptor socket = begin_to_connect(address_);
  if (socket)
    attempts_.push_back({std::move(socket), now});
  else if (errno == ECONNREFUSED)
    answers_.answered(now);
}

}  // namespace lockstep
