#include "lockstep/comm/engine/tcp/link_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "lockstep/comm/socket.h"

namespace lockstep::engine {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kDoubt = kBeatInterval * 3 / 2;
constexpr milliseconds kCut(2500), kUnanswered(1850);
constexpr milliseconds kUseless(30'000);
constexpr milliseconds kLook(250), kLookInDoubt(50);

milliseconds silence_on(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return milliseconds(0);
  return milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

}  // namespace

Way judge(const Silence& silence) {
  if (silence.on_link < kDoubt) return Way::Open;
  const bool is_cut = silence.on_link >= kCut && silence.of_questions >= kUnanswered;
  return is_cut || silence.on_link >= kUseless ? Way::Cut : Way::Doubtful;
}

void LinkWatch::add(int rank, int socket, const std::string& address) {
  const auto found = look_up(parse_address(address));
  if (found.empty()) return;
  watched_.push_back({.rank = rank, .socket = socket, .address = found.front()});
  next_ = Deadline::after(kLook);
}

void LinkWatch::look(const OnCut& on_cut) {
  if (!next_.expired()) return;
  const auto now = Clock::now();
  milliseconds until_doubt = kLook;
  for (Watched& watched : watched_) {
    Silence silence{silence_on(watched.socket)};
    until_doubt = std::clamp(kDoubt - silence.on_link, kLookInDoubt, until_doubt);
    if (silence.on_link < kDoubt) {
      watched.probe.reset();
    } else {
      if (!watched.probe) watched.probe.emplace(watched.address);
      watched.probe->ask(now);
      silence.of_questions = duration_cast<milliseconds>(watched.probe->answers().unanswered());
    }
    watched.is_cut = judge(silence) == Way::Cut;
    if (!watched.is_cut || now - watched.reported < kLook) continue;
    watched.reported = now;
    on_cut(watched.rank);
  }
  next_ = Deadline::after(until_doubt);
}

bool LinkWatch::has_cut() const {
  return std::ranges::any_of(watched_, [](const Watched& watched) { return watched.is_cut; });
}

}  // namespace lockstep::engine
