#include "lockstep/comm/coordination/silence.h"

namespace lockstep::coordination {

bool is_gone(const JoinOptions& options, Answers::Time heard, const Answers& answers, Answers::Time now) {
  if (now - heard <= options.dead_after) return false;
  if (!answers.last_question) return true;
  const auto unanswered = answers.unanswered_for(now);
  const bool has_answered = answers.last_answer.has_value();
  if (unanswered >= Answers::kGap) {
    // Cut off now. A second pause that follows the first within the same silence gets the time of a pause, too.
    return unanswered >= (has_answered ? options.dead_after - options.heartbeat_interval
                                       : (options.dead_after - doubt_after(options)) / 2);
  }
  if (!has_answered) return false;    // it was only just asked
  if (!answers.resumed) return true;  // the machine has answered all along: the process is frozen
  // TCP doubles its waits, so the next retransmission comes after at most the time that the silence had lasted by then.
  return now - *answers.resumed > (*answers.resumed - heard) + doubt_after(options);
}

}  // namespace lockstep::coordination
