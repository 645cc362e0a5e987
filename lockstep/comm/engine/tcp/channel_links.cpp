// What a channel does with its connections, and how it ends.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/tcp/channel.h"

namespace lockstep::engine {
namespace {

constexpr auto kGoodbye = std::chrono::seconds(2);
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kLastWords = std::chrono::milliseconds(50);

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "worker " : "workers ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += str(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

// Sends and receives what is possible now; sleeps until something is if it may.
void Channel::step(const Job* job, bool may_sleep) {
  check(job);
  std::vector<pollfd> polled{{event_.get(), POLLIN, 0}};
  std::vector<Link*> of_entry{nullptr};
  for (const auto& link : links_) {
    if (!link || link->closed()) continue;
    if (link->waits()) {
      link->pull(*this);
      // What came may be all that the collective still lacked.
      if (!link->waits()) may_sleep = false;
    }
    const int events = (link->waits() ? 0 : POLLIN) | (link->queued() > 0 ? POLLOUT : 0);
    if (events == 0) continue;
    polled.push_back({link->socket(), static_cast<short>(events), 0});
    of_entry.push_back(link.get());
  }
  const Deadline until = job != nullptr ? job->deadline : Deadline::never();
  // Two workers of one machine that sleep and wake each other for every chunk end up on one core, in turn.
  int ready = 0;
  if (may_sleep && flow_ != nullptr) {
    const Deadline spin = Deadline::after(kSpin);
    while ((ready = ::poll(polled.data(), polled.size(), 0)) == 0 && !spin.expired()) {
    }
  }
  if (ready == 0) ::poll(polled.data(), polled.size(), may_sleep ? poll_milliseconds(until) : 0);
  if (polled[0].revents != 0) {
    std::uint64_t ignored = 0;
    (void)!::read(event_.get(), &ignored, sizeof ignored);
  }
  for (std::size_t i = 1; i < polled.size(); ++i) {
    Link& link = *of_entry[i];
    if ((polled[i].revents & POLLOUT) != 0) link.push();
    if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) link.pull(*this);
    check_closed(link, job);
  }
}

void Channel::check(const Job* job) {
  if (job != nullptr && job->deadline.expired()) throw_timeout(*job);
  if (!attention_.load(std::memory_order_acquire)) return;
  attention_.store(false, std::memory_order_release);
  failure_.throw_if_set();
  const std::lock_guard lock(mutex_);
  if (job == nullptr) return;
  if (stopping_)
    throw Failure(Code::Cancelled, errors::kPeerLost,
                  {.what = "the data engine was destroyed while a collective was under way",
                   .where = describe(job->fingerprint),
                   .help = "wait for every ticket before the strategy ends"});
  if (overdue_ && *overdue_ >= sequence_) throw_timeout(*job);
}

// A worker that has left may do so as soon as it has made all collectives that this one makes.
void Channel::check_closed(const Link& link, const Job* job) {
  const int rank = link.rank();
  const std::uint64_t left_after = left_after_[static_cast<std::size_t>(rank)];
  if (left_after != kStays) {
    if (job == nullptr || left_after > sequence_) return;
    throw Failure(
        Code::Unavailable, errors::kPeerLost,
        {.what = str("worker ", rank, " has left the job"),
         .where = str("collective ", sequence_, " of channel ", settings_.index, ": ", describe(job->fingerprint)),
         .seen = str("it made ", left_after, " collectives on this channel"),
         .help = "let all workers make the same number of steps; look at that worker's log"},
        rank);
  }
  if (!link.closed()) return;
  failure_.lost(rank, job == nullptr ? "" : str(describe(job->fingerprint)),
                str(link.close_reason(), "; collective ", sequence_, " of channel ", settings_.index));
}

void Channel::throw_timeout(const Job& job) const {
  std::vector<int> ranks;
  if (flow_ != nullptr) {
    ranks = flow_->awaited();
  } else {
    for (const auto& link : links_)
      if (link && !has_frame_[parity()][static_cast<std::size_t>(link->rank())]) ranks.push_back(link->rank());
  }
  const bool are_late = flow_ == nullptr && !ranks.empty();
  throw Failure(Code::DeadlineExceeded, errors::kTimeout,
                {.what = ranks.empty() ? str(describe(job.fingerprint), " took longer than its time limit")
                         : are_late    ? str(ranks_text(ranks), " did not reach a collective in time")
                                       : str(ranks_text(ranks), " did not send all data of a collective in time"),
                 .where = str("collective ", sequence_, " of channel ", settings_.index, ": ",
                              describe(job.fingerprint), ", on worker ", settings_.flow.rank),
                 .help = "look at what that worker was doing; raise timeout_seconds if it was only slow"},
                ranks.empty() ? -1 : ranks.front());
}

void* Channel::target(Link& from, const Message& message) {
  const auto rank = static_cast<std::size_t>(from.rank());
  const auto is = [&](std::uint64_t sequence) { return message.sequence == static_cast<std::uint32_t>(sequence); };
  switch (message.kind) {
    case MessageKind::Frame: {
      const std::size_t which = (is(sequence_) ? sequence_ : sequence_ + 1) % 2;
      if ((!is(sequence_) && !is(sequence_ + 1)) || has_frame_[which][rank] || message.bytes < sizeof(Fingerprint) ||
          message.bytes > sizeof(Fingerprint) + settings_.inline_bytes)
        break;
      return frames_[which][rank].data();
    }
    case MessageKind::Piece:
    case MessageKind::Result:
      if (!is(sequence_)) break;
      // Data is taken only once all workers have agreed on what it is.
      return flow_ == nullptr ? nullptr : flow_->target(from.rank(), message);
    case MessageKind::Leave:
      if (message.bytes != 0) break;
      return &left_after_;  // no bytes follow
    case MessageKind::Failed:
      if (message.bytes != sizeof(lockstep_status)) break;
      return &notices_[from.rank()];
  }
  throw Failure(Code::DataLoss, errors::kStranger,
                {.what = str("worker ", from.rank(), " sent bytes that nobody expects"),
                 .where = str("collective ", sequence_, " of channel ", settings_.index),
                 .seen = str("message ", static_cast<int>(message.kind), " of collective ", message.sequence, ", ",
                             message.bytes, " bytes"),
                 .help = "this is a bug in Lockstep, or the connection is disturbed: please report it"},
                from.rank());
}

void Channel::arrived(Link& from, const Message& message) {
  const auto rank = static_cast<std::size_t>(from.rank());
  switch (message.kind) {
    case MessageKind::Frame: has_frame_[message.sequence % 2][rank] = true; return;
    case MessageKind::Piece:
    case MessageKind::Result: flow_->arrived(from.rank(), message); return;
    case MessageKind::Leave: left_after_[rank] = message.sequence + (std::uint64_t{message.chunk} << 32); return;
    case MessageKind::Failed: throw Failure(notices_[from.rank()]);
  }
}

void Channel::say_goodbye() noexcept {
  const Deadline deadline = Deadline::after(kGoodbye);
  const Message message{MessageKind::Leave, 0, static_cast<std::uint32_t>(sequence_),
                        static_cast<std::uint32_t>(sequence_ >> 32), 0};
  try {
    for (const auto& link : links_)
      if (link && !link->closed()) link->send(message, nullptr);
    // Closing while bytes are under way would throw them away.
    const auto is_left = [&](const std::unique_ptr<Link>& link) {
      if (!link || link->closed()) return true;
      link->push();
      return link->queued() == 0 && link->unacknowledged() == 0;
    };
    while (!std::ranges::all_of(links_, is_left) && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  } catch (...) {
  }
  end_all_jobs(make_status(Code::Cancelled, errors::kPeerLost,
                           {.what = "the data engine was destroyed before this collective began",
                            .help = "wait for every ticket before the strategy ends"}));
}

void Channel::report_failure() noexcept {
  lockstep_status status = failure_.get();
  std::vector<Link*> told;
  const Message message{MessageKind::Failed, 0, 0, 0, sizeof(lockstep_status)};
  try {
    for (const auto& link : links_) {
      if (!link || link->closed() || !link->between_messages()) continue;
      link->drop_queue();
      link->send(message, &status);
      link->push();
      told.push_back(link.get());
    }
  } catch (...) {
  }
  end_all_jobs(status);
  const Deadline deadline = Deadline::after(kLastWords);
  while (!deadline.expired() && std::ranges::any_of(told, [](Link* link) { return link->unacknowledged() > 0; }))
    std::this_thread::sleep_for(std::chrono::microseconds(500));
}

void Channel::end_all_jobs(const lockstep_status& status) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, job] : jobs_) {
    if (job->done) continue;
    job->error = status;
    job->done = true;
  }
  queue_.clear();
  done_.notify_all();
}

}  // namespace lockstep::engine
