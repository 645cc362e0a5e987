// How the chief interprets members that cannot reach each other, or that fall silent together.

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/silence.h"
#include "tests/support/chief_desk.h"

namespace lockstep::coordination {
namespace {

using namespace std::chrono_literals;

/// Three members on three hosts; one of them is the chief.
class Cuts : public AtTheDesk {
 protected:
  static JoinOptions on_three_hosts() {
    JoinOptions options{.cluster = "a"};
    for (int id = 0; id < 3; ++id)
      options.members.push_back({"worker", id, {str("10.0.0.", id), static_cast<std::uint16_t>(2222)}});
    return options;
  }

  Cuts() : AtTheDesk(on_three_hosts()) {
    for (int id = 0; id < 3; ++id) tokens_.push_back(join(connection_of(id), id));
  }

  static std::uint64_t connection_of(int id) { return static_cast<std::uint64_t>(id + 1); }

  void beat(const std::set<int>& members) {
    for (const int id : members) {
      wire::ToChief message;
      message.set_beat("call 7");
      send(id, message);
    }
  }
  void report_cut(int from, int other) {
    wire::ToChief message;
    message.set_cut_from(other);
    send(from, message);
  }
  /// Advances time in small steps, with heartbeats from these members.
  void pass(Chief::Time::duration time, const std::set<int>& beating) {
    for (const auto end = now + time; now < end;) {
      now += 50ms;
      if ((now - Chief::Time()) / 50ms % 10 == 0) beat(beating);
      chief.tick(now);
    }
  }
  /// The failure that all members received; empty if none.
  std::string failure() const {
    for (const auto& [to, message] : desk.sent) {
      if (message.has_fault())
        return str("L", error_from(message.fault()).number(), " ", error_from(message.fault()).what());
    }
    return {};
  }

 private:
  void send(int from, wire::ToChief message) {
    message.set_token(tokens_[static_cast<std::size_t>(from)]);
    message.set_generation(chief.generation());
    say(connection_of(from), message);
  }

  std::vector<std::string> tokens_;
};

TEST_F(Cuts, BetweenTwoThatBothBeatArePairs) {
  pass(1s, {0, 1, 2});
  report_cut(2, 1);
  const std::string text = failure();
  EXPECT_TRUE(text.starts_with("L104 ")) << text;
  EXPECT_NE(text.find("worker 1 (10.0.0.1:2222) and worker 2 (10.0.0.2:2222) cannot reach each other"), text.npos)
      << text;
  EXPECT_NE(text.find("both still reach the chief; reported by worker 2"), text.npos) << text;
}

TEST_F(Cuts, FromTheChiefsOwnDataSayThatHeartbeatsArrive) {
  pass(1s, {0, 1, 2});
  report_cut(2, 0);
  EXPECT_NE(failure().find("worker 0 (10.0.0.0:2222) and worker 2 (10.0.0.2:2222) cannot"), std::string::npos)
      << failure();
  EXPECT_NE(failure().find("heartbeats still reach the chief, but no data"), std::string::npos) << failure();
}

TEST_F(Cuts, FromAWorkerThatIsGoneNameThatWorker) {
  pass(1s, {0, 1, 2});
  pass(1500ms, {0, 1});  // worker 2 is cut off from all
  report_cut(1, 2);
  EXPECT_EQ(failure(), "");
  pass(1500ms, {0, 1});
  EXPECT_NE(failure().find("worker 2 (10.0.0.2:2222) stopped answering"), std::string::npos) << failure();
}

TEST_F(Cuts, ThatEndWithAPauseAreForgotten) {
  pass(1s, {0, 1, 2});
  pass(1500ms, {0, 1});
  report_cut(1, 2);
  pass(500ms, {0, 1, 2});
  report_cut(1, 2);  // sent before the network was back
  pass(5s, {0, 1, 2});
  EXPECT_EQ(failure(), "");
}

TEST_F(Cuts, ThatOutlastAPauseAreNamedOnceHeartbeatsAreSteady) {
  pass(1s, {0, 1, 2});
  pass(1500ms, {0, 1});
  for (int k = 0; k < 8 && failure().empty(); ++k) {
    pass(250ms, {0, 1, 2});
    report_cut(1, 2);
  }
  EXPECT_NE(failure().find("cannot reach each other"), std::string::npos) << failure();
}

TEST_F(Cuts, FromNobodyAreIgnored) {
  pass(1s, {0, 1, 2});
  for (const int other : {-1, 2, 3, 1 << 30}) report_cut(2, other);
  EXPECT_EQ(failure(), "");
}

TEST_F(Cuts, AChiefThatLosesAllOtherHostsIsTheOneCutOff) {
  pass(1s, {0, 1, 2});
  pass(3s, {0});
  EXPECT_TRUE(failure().starts_with("L117 ")) << failure();
  EXPECT_NE(failure().find("worker 0 (10.0.0.0:2222), the chief, is cut off from all other hosts"), std::string::npos)
      << failure();
  EXPECT_NE(failure().find("worker 1 and worker 2 fell silent at the same time"), std::string::npos) << failure();
}

TEST_F(Cuts, AChiefThatStillHearsOneBlamesTheOther) {
  pass(1s, {0, 1, 2});
  pass(3s, {0, 2});
  EXPECT_NE(failure().find("L104"), std::string::npos) << failure();
  EXPECT_NE(failure().find("worker 1 (10.0.0.1:2222) stopped answering"), std::string::npos) << failure();
}

TEST_F(Cuts, MembersInDoubtAreThoseWhoseHeartbeatsAreLate) {
  pass(1s, {0, 1, 2});
  EXPECT_TRUE(chief.in_doubt(now).empty());
  pass(1s, {0, 1});
  ASSERT_EQ(chief.in_doubt(now).size(), 1U);
  EXPECT_EQ(chief.in_doubt(now)[0].member, 2);
  EXPECT_EQ(chief.in_doubt(now)[0].connection, connection_of(2));
}

TEST_F(Cuts, AMemberWhoseMachineAnswersAgainAfterAGapGetsTimeToRetransmit) {
  pass(1s, {0, 1, 2});
  pass(1s, {0, 1});
  Answers answers;
  const auto pass_asking = [&](Chief::Time::duration time, bool answered) {
    for (const auto end = now + time; now < end; pass(50ms, {0, 1})) {
      answers.asked(now);
      if (answered) answers.answered(now);
      chief.note_answers(2, answers);
    }
  };
  pass_asking(450ms, false);
  pass_asking(1800ms, true);
  EXPECT_EQ(failure(), "");
  pass_asking(1s, true);
  EXPECT_NE(failure().find("worker 2 (10.0.0.2:2222) stopped answering"), std::string::npos) << failure();
}

// ---- the meaning of silence

TEST(Silence, TellsPausesFromCutsAndFrozenProcesses) {
  const JoinOptions options;  // a heartbeat every 500 ms, gone after 2.5 s
  struct Row {
    const char* what;
    int silent;  // ms; the next three are times ago, -1: never
    int asked, unanswered, answered, resumed;
    bool is_gone;
  };
  for (const Row& row : std::vector<Row>{
           {"heartbeats come", 400, -1, -1, -1, -1, false},
           {"no one had time to ask", 2600, -1, -1, -1, -1, true},
           {"cut off", 2400, 0, 1600, -1, -1, false},
           {"two pauses, the first of which was over before doubt began", 2600, 0, 1800, -1, -1, false},
           {"cut off", 2700, 0, 1900, -1, -1, true},
           {"asked too late to know", 2600, 0, 50, -1, -1, false},
           {"frozen, on a machine that answers", 2400, 0, 0, 50, -1, false},
           {"frozen, on a machine that answers", 2510, 0, 0, 50, -1, true},
           {"a pause that has only just begun", 2510, 0, 200, 350, -1, false},
           {"a pause that is over", 2600, 0, 0, 50, 900, false},
           {"a second pause", 3400, 0, 1600, 1650, 1700, false},
           {"a second pause, before TCP sent again", 2600, 0, 1450, 1500, -1, false},
           {"a second pause that does not end", 4000, 0, 2100, 2150, 2200, true},
           {"after a pause, TCP has not sent again yet", 5000, 0, 0, 50, 2800, false},
           {"after a pause, TCP must have sent again", 6000, 0, 0, 50, 3900, true},
           {"pauses without end", 30'100, 0, 0, 50, 14'000, true},
       }) {
    const Answers::Time now = Answers::Clock::now();
    const auto ago = [&](int time) {
      return time < 0 ? std::optional<Answers::Time>() : now - std::chrono::milliseconds(time);
    };
    const Answers answers{.last_question = ago(row.asked),
                          .last_answer = ago(row.answered),
                          .unanswered_since = row.unanswered > 0 ? ago(row.unanswered) : ago(-1),
                          .resumed = ago(row.resumed)};
    EXPECT_EQ(is_gone(options, *ago(row.silent), answers, now), row.is_gone) << row.what << ", " << row.silent << " ms";
  }
}

}  // namespace
}  // namespace lockstep::coordination
