#include "lockstep/comm/engine/tcp/link_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

// With one question a second, a link that works is never silent for much longer than that.
constexpr int kQuestionSeconds = 1;
constexpr int kMostQuestions = 100;  // the system gives up a connection after so many; judge() does before
constexpr milliseconds kDoubt(1250);
constexpr milliseconds kCut(2600);
constexpr milliseconds kUseless(30'000);
constexpr milliseconds kLook(250), kLookInDoubt(50);
constexpr milliseconds kAttempt(400);

milliseconds silence_on(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return milliseconds(0);
  return milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

}  // namespace

Way judge(const Silence& silence) {
  if (silence.on_link < kDoubt) return Way::Open;
  const bool is_answered = silence.of_answers && *silence.of_answers < kCut;
  return silence.on_link >= kUseless || (silence.on_link >= kCut && !is_answered) ? Way::Cut : Way::Doubtful;
}

void LinkWatch::add(int rank, int socket, const std::string& address) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kQuestionSeconds, sizeof kQuestionSeconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kQuestionSeconds, sizeof kQuestionSeconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &kMostQuestions, sizeof kMostQuestions);
  const auto found = look_up(parse_address(address));
  if (found.empty()) return;
  watched_.push_back({.rank = rank, .socket = socket, .address = found.front()});
  next_ = Deadline::after(kLook);
}

void LinkWatch::ask(Watched& watched, Clock::time_point now) {
  if (watched.attempt && is_ready(watched.attempt.get(), POLLOUT, Deadline::at(now))) {
    const int error = connect_error(watched.attempt, Deadline::at(now));
    if (error == 0 || error == ECONNREFUSED) watched.answered = now;
    watched.attempt.close();
  }
  if (now - watched.began < kAttempt) return;
  watched.began = now;
  watched.attempt = begin_to_connect(watched.address);
  if (!watched.attempt && errno == ECONNREFUSED) watched.answered = now;
}

void LinkWatch::look(const OnCut& on_cut) {
  if (!next_.expired()) return;
  const auto now = Clock::now();
  bool is_in_doubt = false;
  for (Watched& watched : watched_) {
    if (watched.is_cut) continue;
    Silence silence{silence_on(watched.socket)};
    if (watched.answered) silence.of_answers = std::chrono::duration_cast<milliseconds>(now - *watched.answered);
    switch (judge(silence)) {
      case Way::Open: watched.attempt.close(); break;
      case Way::Doubtful:
        is_in_doubt = true;
        ask(watched, now);
        break;
      case Way::Cut:
        watched.is_cut = true;
        watched.attempt.close();
        on_cut(watched.rank);
        break;
    }
  }
  next_ = Deadline::after(is_in_doubt ? kLookInDoubt : kLook);
}

}  // namespace lockstep::engine
