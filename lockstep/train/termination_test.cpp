#include "lockstep/train/termination.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <optional>

namespace lockstep::train::detail {
namespace {

std::atomic<int> plain_calls{0}, calls_with_info{0};
void plain_handler(int) { ++plain_calls; }
void handler_with_info(int, siginfo_t*, void*) { ++calls_with_info; }

/// The handler of a test, until its end.
class Handler {
 public:
  explicit Handler(struct sigaction action) { ::sigaction(SIGTERM, &action, &before_); }
  ~Handler() { ::sigaction(SIGTERM, &before_, nullptr); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  struct sigaction before_ {};
};

struct sigaction plain(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  return action;
}
struct sigaction present() {
  struct sigaction action {};
  ::sigaction(SIGTERM, nullptr, &action);
  return action;
}

TEST(TerminationWatch, NoticesSignalsSinceItBegan) {
  const Handler ignored(plain(SIG_IGN));
  ::raise(SIGTERM);
  const TerminationWatch first;
  EXPECT_FALSE(first.is_requested());
  ::raise(SIGTERM);
  EXPECT_TRUE(first.is_requested());
  const TerminationWatch second;
  EXPECT_FALSE(second.is_requested());
}

TEST(TerminationWatch, CallsTheHandlerThatWasThereAndPutsItBack) {
  plain_calls = calls_with_info = 0;
  const Handler handler(plain(plain_handler));
  {
    const TerminationWatch outer;
    const TerminationWatch inner;
    ::raise(SIGTERM);
    EXPECT_EQ(plain_calls, 1);
  }
  EXPECT_EQ(present().sa_handler, plain_handler);
  struct sigaction with_info {};
  with_info.sa_sigaction = handler_with_info;
  with_info.sa_flags = SA_SIGINFO;
  const Handler other(with_info);
  {
    const TerminationWatch watch;
    ::raise(SIGTERM);
    EXPECT_TRUE(watch.is_requested());
  }
  EXPECT_EQ(calls_with_info, 1);
  EXPECT_EQ(present().sa_sigaction, handler_with_info);
}

TEST(TerminationWatch, LeavesAHandlerThatTheProgramHasSetMeanwhile) {
  const Handler handler(plain(SIG_IGN));
  {
    const TerminationWatch watch;
    const struct sigaction mine = plain(plain_handler);
    ::sigaction(SIGTERM, &mine, nullptr);
  }
  EXPECT_EQ(present().sa_handler, plain_handler);
}

TEST(TerminationWatch, EndsTheProcess) { EXPECT_EXIT(end_terminated_process(), testing::ExitedWithCode(143), ""); }

}  // namespace
}  // namespace lockstep::train::detail
