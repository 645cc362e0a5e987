#include "lockstep/comm/way_probe.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

const Answers::Time kBegin = Answers::Clock::now();

TEST(Answers, CountFromTheFirstQuestionThatWasNotAnswered) {
  Answers answers;
  EXPECT_EQ(answers.unanswered(), 0ms);
  for (auto now = kBegin; now <= kBegin + 1s; now += 100ms) answers.asked(now);
  EXPECT_EQ(answers.unanswered(), 1s);
  answers.answered(kBegin + 1s);
  EXPECT_EQ(answers.unanswered(), 0ms);
  EXPECT_EQ(answers.resumed, kBegin + 1s);
}

TEST(Answers, ThatComeAtOnceShowNoGap) {
  Answers answers;
  for (auto now = kBegin; now <= kBegin + 1s; now += 100ms) {
    answers.asked(now);
    answers.answered(now + 50ms);
  }
  EXPECT_EQ(answers.last_answer, kBegin + 1050ms);
  EXPECT_FALSE(answers.resumed);
}

TEST(Answers, AThreadThatDidNotRunBeginsAgain) {
  Answers answers;
  answers.asked(kBegin);
  answers.asked(kBegin + 3s);
  EXPECT_EQ(answers.unanswered(), 0ms);
}

Answers asked_for(WayProbe& probe, std::chrono::milliseconds time) {
  for (const Deadline end = Deadline::after(time); !end.expired(); ::poll(nullptr, 0, 10))
    probe.ask(Answers::Clock::now());
  return probe.answers();
}

TEST(WayProbe, IsAnsweredByAListenerThatNeverAccepts) {
  const Descriptor listener = listen_at({"127.0.0.1", 0});
  WayProbe probe(look_up(parse_address(own_name(listener.get()))).front());
  EXPECT_TRUE(asked_for(probe, 350ms).last_answer);
}

TEST(WayProbe, TakesARefusalForAnAnswer) {
  Descriptor listener = listen_at({"127.0.0.1", 0});
  const std::string address = own_name(listener.get());
  listener.close();
  WayProbe probe(look_up(parse_address(address)).front());
  EXPECT_TRUE(asked_for(probe, 350ms).last_answer);
}

// The queue of a socket that accepts nothing is full: the system drops packets, as a cut network does.
TEST(WayProbe, NoticesThatNothingComesBackAndThatItIsOver) {
  const Descriptor silent = listen_at({"127.0.0.1", 0});
  ASSERT_EQ(::listen(silent.get(), 0), 0);
  const Address address = parse_address(own_name(silent.get()));
  std::vector<Descriptor> queue;
  while (queue.size() < 8 && (queue.empty() || queue.back()))
    queue.push_back(connect_to(address, Deadline::after(100ms)));
  ASSERT_FALSE(queue.back()) << "the queue never fills up";
  WayProbe probe(look_up(address).front());
  const Answers cut = asked_for(probe, 700ms);
  EXPECT_FALSE(cut.last_answer);
  EXPECT_GE(cut.unanswered(), 600ms);
  while (accept_from(silent.get()).socket) {
  }
  ASSERT_EQ(::listen(silent.get(), 16), 0);
  EXPECT_TRUE(asked_for(probe, 400ms).resumed);
}

}  // namespace
}  // namespace lockstep
