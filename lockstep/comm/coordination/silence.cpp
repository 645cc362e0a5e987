#include "lockstep/comm/coordination/silence.h"

namespace lockstep::coordination {

bool is_gone(const JoinOptions& options, Answers::Time heard, const Answers& answers, Answers::Time now) {
  const auto silent = now - heard;
  if (silent <= options.dead_after) return false;
  if (!answers.last_question || silent > kMostPatience * options.dead_after) return true;
  // A second pause that follows the first within the same silence gets a pause's time too.
  const auto cut = answers.last_answer ? options.dead_after - options.heartbeat_interval : options.dead_after * 3 / 4;
  if (const auto unanswered = answers.unanswered(); unanswered >= Answers::kGap) return unanswered >= cut;
  const bool answers_now = answers.last_answer && now - *answers.last_answer < Answers::kGap;
  if (!answers_now) return false;     // it was only just asked, or a pause has only just begun
  if (!answers.resumed) return true;  // the machine has answered all along: the process is frozen
  // TCP doubles its waits, so the next retransmission comes within the length of the silence so far.
  return now - *answers.resumed > (*answers.resumed - heard) + doubt_after(options);
}

}  // namespace lockstep::coordination
