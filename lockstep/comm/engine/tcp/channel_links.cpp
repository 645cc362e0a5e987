// How a channel uses its connections, and how it ends.

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/disagreement.h"
#include "lockstep/comm/engine/tcp/channel.h"
#include "lockstep/comm/socket.h"

namespace lockstep::engine {
namespace {

constexpr auto kGoodbye = std::chrono::seconds(2);
constexpr auto kLastWords = std::chrono::milliseconds(50);
constexpr auto kVerdict = std::chrono::seconds(4);
constexpr auto kSpin = std::chrono::microseconds(200);

template <class Condition>
void wait_until(Deadline deadline, const Condition& condition) {
  while (!condition() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace

// Sends and receives what is possible now; may sleep until something is.
void Channel::step(const Job* job, bool may_sleep) {
  check(job);
  polled_.assign({{event_.get(), POLLIN, 0}, {failure_.event(), POLLIN, 0}});
  for (const auto& link : links_) {
    if (link->waits()) {
      link->pull(*this);
      // The collective may have everything it needs now.
      if (!link->waits()) may_sleep = false;
    }
    const int events = (link->waits() ? 0 : POLLIN) | (link->queued() > 0 ? POLLOUT : 0);
    polled_.push_back({link->closed() || events == 0 ? -1 : link->socket(), static_cast<short>(events), 0});
  }
  int ready = 0;
  // Two workers of one machine that sleep and wake each other for every chunk end up sharing one core. Not while the
  // program computes: the core is then better used by it.
  if (may_sleep && flow_ && waiting_ > 0) {
    const Deadline spin = Deadline::after(kSpin);
    while ((ready = ::poll(polled_.data(), polled_.size(), 0)) == 0 && !spin.expired()) {
    }
  }
  const auto earlier = [](const Deadline& a, const Deadline& b) { return a.remaining() < b.remaining() ? a : b; };
  Deadline until = earlier(watch_.next_look(), next_beat_);
  if (job != nullptr) until = earlier(job->deadline, until);
  if (ready == 0) ::poll(polled_.data(), polled_.size(), may_sleep ? poll_milliseconds(until) : 0);
  if (polled_[0].revents != 0) {
    std::uint64_t ignored = 0;
    (void)!::read(event_.get(), &ignored, sizeof ignored);
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const auto seen = polled_[i + 2].revents;
    if ((seen & POLLOUT) != 0) links_[i]->push();
    if ((seen & (POLLIN | POLLHUP | POLLERR)) != 0) links_[i]->pull(*this);
    check_closed(*links_[i], job);
  }
  send_beats();
  look_at_ways();
}

void Channel::send_beats() {
  if (!next_beat_.expired()) return;
  next_beat_ = Deadline::after(kBeatInterval);
  for (const auto& link : links_) {
    const bool has_left = left_after_[static_cast<std::size_t>(link->rank())] != kStays;
    if (has_left || link->queued() > 0) continue;
    link->send({MessageKind::Beat, 0, 0, 0, 0}, nullptr);
    link->push();
  }
}

void Channel::look_at_ways() {
  watch_.look([this](int rank) {
    if (!cut_) cut_.emplace(rank, Deadline::after(settings_.on_cut ? kVerdict : std::chrono::seconds(0)));
    if (settings_.on_cut) settings_.on_cut(rank);
  });
  if (!watch_.has_cut()) cut_.reset();
  if (!cut_ || !cut_->second.expired()) return;
  throw Unavailable(errors::kPeerLost,
                    {.what = str("worker ", settings_.rank, " and worker ", cut_->first, " cannot reach each other"),
                     .seen = "nothing has come through for more than 2.5 s",
                     .help = "look at the network between these two machines: routes, firewalls, cables"});
}

void Channel::check(const Job* job) const {
  failure_.throw_if_set();
  if (job == nullptr) return;
  if (stopping_)
    throw Cancelled(errors::kPeerLost, {.what = "the data engine was destroyed while a collective was under way",
                                        .where = describe(job->fingerprint),
                                        .help = "wait for every ticket before the strategy ends"});
  if (!job->deadline.expired()) return;
  const std::vector<int> ranks = flow_ ? flow_->awaited() : late();
  const std::string who = workers_text(ranks);
  throw DeadlineExceeded(errors::kTimeout,
                         {.what = ranks.empty() ? str(describe(job->fingerprint), " took longer than its time limit")
                                  : !flow_      ? who + " did not reach a collective in time"
                                                : who + " did not send all data of a collective in time",
                          .where = place_of(*job),
                          .help = "look at what that worker was doing; raise timeout_seconds if it was only slow"});
}

std::string Channel::place_of(const Job& job) const {
  return str("collective ", sequence_, " of channel ", index_, ": ", describe(job.fingerprint), ", on worker ",
             settings_.rank);
}

// A worker may leave as soon as it has made all collectives that this one makes.
void Channel::check_closed(const Link& link, const Job* job) {
  const int rank = link.rank();
  const std::uint64_t left_after = left_after_[static_cast<std::size_t>(rank)];
  if (left_after != kStays) {
    if (job == nullptr || left_after > sequence_) return;
    throw Unavailable(errors::kPeerLost,
                      {.what = str("worker ", rank, " has left the job"),
                       .where = place_of(*job),
                       .seen = str("it made ", left_after, " collectives on this channel"),
                       .help = "let all workers make the same number of steps; look at that worker's log"});
  }
  if (link.closed()) failure_.lost(rank, str(link.close_reason(), "; collective ", sequence_, " of channel ", index_));
}

void* Channel::target(Link& from, const Message& message) {
  const auto is = [&](std::uint64_t sequence) { return message.sequence == static_cast<std::uint32_t>(sequence); };
  const std::uint64_t reached = reached_[from.rank()];
  switch (message.kind) {
    case MessageKind::Frame: {
      const std::size_t most = sizeof(Fingerprint) + settings_.inline_bytes;
      if (!is(reached) || reached > sequence_ + 1 || message.bytes < sizeof(Fingerprint) || message.bytes > most) break;
      return frames_[reached % 2][from.rank()].words.data();
    }
    case MessageKind::Piece:
    case MessageKind::Result:
    case MessageKind::Taken:
      if (!is(sequence_)) break;
      // Data is accepted only once all workers have agreed on the collective.
      return flow_ ? flow_->target(from.rank(), message) : nullptr;
    case MessageKind::Leave:
      if (message.bytes != 0) break;
      return &left_after_;  // no bytes follow
    case MessageKind::Beat:
      if (message.bytes != 0) break;
      return &next_beat_;  // no bytes follow
    case MessageKind::Failed:
      if (message.bytes > kMostErrorBytes) break;
      notices_[from.rank()].resize(message.bytes);
      return notices_[from.rank()].data();
  }
  refuse(from.rank(), message);
}

void Channel::arrived(Link& from, const Message& message) {
  switch (message.kind) {
    case MessageKind::Frame: ++reached_[from.rank()]; return;
    case MessageKind::Piece:
    case MessageKind::Result:
    case MessageKind::Taken: flow_->arrived(from.rank(), message); return;
    case MessageKind::Leave: left_after_[from.rank()] = message.sequence + (std::uint64_t{message.chunk} << 32); return;
    case MessageKind::Beat: return;
    case MessageKind::Failed: throw_error(error_from(notices_[from.rank()]));
  }
}

void Channel::say_goodbye() noexcept {
  const Message message{MessageKind::Leave, 0, static_cast<std::uint32_t>(sequence_),
                        static_cast<std::uint32_t>(sequence_ >> 32), 0};
  for (const auto& link : links_) link->send(message, nullptr);
  // Closing with bytes in flight would discard them.
  wait_until(Deadline::after(kGoodbye), [&] {
    return std::ranges::all_of(links_, [](const auto& link) {
      link->push();
      return link->closed() || (link->queued() == 0 && link->unacknowledged() == 0);
    });
  });
}

void Channel::report_failure() noexcept {
  const std::string bytes = to_bytes(failure_.get(), kMostErrorBytes);
  const Message message{MessageKind::Failed, 0, 0, 0, static_cast<std::uint32_t>(bytes.size())};
  std::vector<Link*> told;
  for (const auto& link : links_) {
    if (link->tell_last(message, bytes.data())) told.push_back(link.get());
  }
  end_all_jobs([this](const Job& job) { return failure_.get(describe(job.fingerprint)); });
  wait_until(Deadline::after(kLastWords),
             [&] { return std::ranges::all_of(told, [](const Link* link) { return link->unacknowledged() == 0; }); });
}

}  // namespace lockstep::engine
