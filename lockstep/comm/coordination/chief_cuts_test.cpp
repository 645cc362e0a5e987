// What the chief makes of members that cannot reach each other, or that fall silent together.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
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
  /// Time goes by in small steps, with the heartbeats of these.
  void pass(Chief::Time::duration time, const std::set<int>& beating) {
    for (const auto end = now + time; now < end;) {
      now += 50ms;
      if ((now - Chief::Time()) / 50ms % 10 == 0) beat(beating);
      chief.tick(now);
    }
  }
  /// What all members were told; empty if nothing.
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

TEST_F(Cuts, ThatEndWithAPauseAreJudgedWhenTheHeartbeatsAreBack) {
  pass(1s, {0, 1, 2});
  pass(1500ms, {0, 1});
  report_cut(1, 2);
  pass(500ms, {0, 1, 2});
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

}  // namespace
}  // namespace lockstep::coordination
