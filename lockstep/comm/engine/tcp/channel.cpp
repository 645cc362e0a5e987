#include "lockstep/comm/engine/tcp/channel.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {
namespace {

constexpr auto kGoodbye = std::chrono::seconds(2);
constexpr auto kLastWords = std::chrono::milliseconds(50);
constexpr std::uint64_t kStays = std::numeric_limits<std::uint64_t>::max();

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "worker " : "workers ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += str(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

Channel::Channel(ChannelSettings settings, FailureState& failure, std::vector<Descriptor> connections,
                 std::unique_ptr<RingReducer> ring)
    : settings_(std::move(settings)),
      failure_(failure),
      ring_(std::move(ring)),
      left_after_(connections.size(), kStays),
      event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_) throw Failure(Code::ResourceExhausted, errors::kNoThreads, {.what = "the system gives no eventfd"});
  const std::size_t words = (sizeof(Fingerprint) + settings_.inline_bytes + 7) / 8;
  for (int k = 0; k < 2; ++k) {
    frames_[k].assign(connections.size(), std::vector<std::uint64_t>(words));
    has_frame_[k].assign(connections.size(), false);
  }
  for (std::size_t rank = 0; rank < connections.size(); ++rank)
    links_.push_back(connections[rank] ? std::make_unique<Link>(std::move(connections[rank]), static_cast<int>(rank))
                                       : nullptr);
  // Signals are the program's own business.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Failure(Code::ResourceExhausted, errors::kNoThreads,
                  {.what = "the system does not let the data engine start a thread",
                   .help = "raise the limit of threads (ulimit -u)"});
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Channel::~Channel() {
  stop();
  thread_.join();
}

void Channel::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
}

void Channel::wake() {
  attention_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  while (::write(event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::uint64_t Channel::submit(const lockstep_collective& collective) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    failure_.throw_if_set();
    number = submitted_;
    auto job = std::make_shared<Job>(
        make_job(collective, settings_.flow.rank, settings_.flow.workers, settings_.replicas, number));
    const double seconds = collective.seconds > 0 ? collective.seconds : settings_.call_seconds;
    if (seconds > 0) job->deadline = Deadline::after(std::chrono::duration<double>(seconds));
    jobs_.emplace(number, job);
    queue_.push_back(std::move(job));
    ++submitted_;
  }
  wake();
  return number;
}

void Channel::wait(std::uint64_t number, double seconds) {
  std::unique_lock lock(mutex_);
  const auto found = jobs_.find(number);
  if (found == jobs_.end())
    throw Failure(Code::InvalidArgument, errors::kBadOption,
                  {.what = "wait was called with a ticket that is not of this engine or was waited for before",
                   .help = "wait once for each ticket of submit"});
  const std::shared_ptr<Job> job = found->second;
  const auto is_done = [&] { return job->done; };
  if (seconds >= 0 && !done_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, 1e8)), is_done)) {
    // The arrays belong to the collective until the thread has let go of them.
    overdue_ = number;
    lock.unlock();
    wake();
    lock.lock();
  }
  done_.wait(lock, is_done);
  jobs_.erase(number);
  if (job->error) throw Failure(*job->error);
}

// ---- the thread

void Channel::run() noexcept {
  try {
    while (const std::shared_ptr<Job> job = next_job()) {
      log_.begin(job->fingerprint);
      try {
        carry_out(job);
      } catch (...) {
        log_.end(false);
        throw;
      }
      log_.end(true);
      const std::lock_guard lock(mutex_);
      job->done = true;
      done_.notify_all();
    }
    say_goodbye();
  } catch (...) {
    failure_.set(status_of_exception());
    report_failure();
  }
  for (const auto& link : links_)
    if (link) link->close();
}

std::shared_ptr<Job> Channel::next_job() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return nullptr;
      if (!queue_.empty()) {
        auto job = std::move(queue_.front());
        queue_.pop_front();
        return job;
      }
    }
    step(nullptr, true);
  }
}

void Channel::carry_out(const std::shared_ptr<Job>& job) {
  attention_.store(true, std::memory_order_release);  // somebody may have given up before it began
  for (const auto& link : links_)
    if (link) check_closed(*link, job.get());
  send_frames(*job);
  await_frames(*job);
  if (job->implementation == Implementation::Ring) {
    reduce_by_ring(*job);
  } else if (is_inline(*job)) {
    finish_inline(*job);
  } else {
    move_data(*job);
  }
  has_frame_[parity()].assign(links_.size(), false);
  ++sequence_;
}

bool Channel::is_inline(const Job& job) const {
  const std::size_t size = size_of(job.dtype);
  if (job.implementation == Implementation::Ring) return false;
  if (job.reduces())
    return job.elements <= settings_.inline_bytes / size / static_cast<std::size_t>(settings_.flow.plan.most_pieces);
  if (job.kind == CollectiveKind::AllGather)
    return *std::ranges::max_element(job.counts) <= settings_.inline_bytes / size;
  return job.elements <= settings_.inline_bytes / size;
}

std::byte* Channel::payload(int rank) const {
  auto* words = const_cast<std::uint64_t*>(frames_[parity()][static_cast<std::size_t>(rank)].data());
  return reinterpret_cast<std::byte*>(words) + sizeof(Fingerprint);
}

const Fingerprint& Channel::fingerprint(int rank) const {
  return *reinterpret_cast<const Fingerprint*>(frames_[parity()][static_cast<std::size_t>(rank)].data());
}

void Channel::send_frames(const Job& job) {
  const int rank = settings_.flow.rank;
  auto& own = frames_[parity()][static_cast<std::size_t>(rank)];
  std::memcpy(own.data(), &job.fingerprint, sizeof(Fingerprint));
  std::size_t bytes = 0;
  if (is_inline(job)) {
    const std::size_t size = size_of(job.dtype);
    if (job.reduces()) {
      const SumPlan& plan = settings_.flow.plan;
      for (int piece = plan.first_piece[rank]; piece < plan.first_piece[rank + 1]; ++piece) {
        const IdRange ids = plan.pieces[piece].ids;
        void* const to = payload(rank) + bytes;
        ordered_sum(job.dtype, job.inputs.data() + (ids.lo - rank * settings_.replicas), ids.hi - ids.lo, &to, 1,
                    job.elements);
        bytes += job.elements * size;
      }
    } else if (!job.inputs.empty()) {
      bytes = (job.counts.empty() ? job.elements : job.counts[static_cast<std::size_t>(rank)]) * size;
      if (bytes > 0) std::memcpy(payload(rank), job.inputs[0], bytes);
    }
  }
  const Message message{MessageKind::Frame, 0, static_cast<std::uint32_t>(sequence_), 0,
                        static_cast<std::uint32_t>(sizeof(Fingerprint) + bytes)};
  for (const auto& link : links_) {
    if (!link) continue;
    link->send(message, own.data());
    link->push();
  }
}

void Channel::await_frames(const Job& job) {
  const auto& has = has_frame_[parity()];
  const auto all_here = [&] {
    for (const auto& link : links_)
      if (link && (!has[static_cast<std::size_t>(link->rank())] || link->queued() > 0)) return false;
    return true;
  };
  while (!all_here()) step(&job, true);
  std::vector<Fingerprint> all;
  bool equal = true;
  for (int rank = 0; rank < settings_.flow.workers; ++rank) equal = equal && fingerprint(rank) == job.fingerprint;
  if (equal) return;
  for (int rank = 0; rank < settings_.flow.workers; ++rank) all.push_back(fingerprint(rank));
  const Comparison seen = compare(all, settings_.index);
  throw Failure(Code::FailedPrecondition, errors::kCollectiveMismatch, seen.text, seen.culprit);
}

void Channel::finish_inline(const Job& job) {
  const std::size_t size = size_of(job.dtype);
  const int workers = settings_.flow.workers;
  if (job.kind == CollectiveKind::Barrier) return;
  if (job.kind == CollectiveKind::Broadcast) {
    for (void* const output : job.outputs)
      if (job.elements > 0) std::memcpy(output, payload(job.root), job.elements * size);
    return;
  }
  const auto shards = job.shards(workers);
  if (job.kind == CollectiveKind::AllGather) {
    for (void* const output : job.outputs)
      for (int rank = 0; rank < workers; ++rank)
        if (shards[rank].size() > 0)
          std::memcpy(static_cast<std::byte*>(output) + shards[rank].begin * size, payload(rank),
                      shards[rank].size() * size);
    return;
  }
  const SumPlan& plan = settings_.flow.plan;
  Shard part{0, job.elements};
  if (job.kind == CollectiveKind::ReduceScatter) part = shards[static_cast<std::size_t>(settings_.flow.rank)];
  std::vector<const void*> values;
  for (std::size_t piece = 0; piece < plan.pieces.size(); ++piece) {
    const int worker = plan.pieces[piece].worker;
    const std::size_t place = piece - static_cast<std::size_t>(plan.first_piece[worker]);
    values.push_back(payload(worker) + (place * job.elements + part.begin) * size);
  }
  std::byte* const temporary = scratch_.at_least(plan.steps.size() * (settings_.inline_bytes + 64));
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    std::vector<const void*> inputs;
    for (const int value : plan.steps[step]) inputs.push_back(values[value]);
    const bool is_last = step + 1 == plan.steps.size();
    void* const to = temporary + step * ((settings_.inline_bytes + 63) / 64 * 64);
    ordered_sum(job.dtype, inputs.data(), static_cast<int>(inputs.size()), is_last ? job.outputs.data() : &to,
                is_last ? static_cast<int>(job.outputs.size()) : 1, part.size(), is_last ? job.divisor : 1);
    values.push_back(to);
  }
}

void Channel::move_data(const Job& job) {
  Flow flow(settings_.flow, job, scratch_);
  flow_ = &flow;
  const auto feed_all = [&] {
    bool fed = false;
    for (const auto& link : links_) {
      if (!link) continue;
      while (flow.feed(*link)) fed = true;
      link->push();
    }
    return fed;
  };
  const auto is_sent = [&] {
    return std::ranges::all_of(links_, [](const auto& link) { return !link || link->queued() == 0; });
  };
  try {
    while (true) {
      bool moved = feed_all();
      while (flow.advance()) {
        feed_all();
        moved = true;
      }
      if (flow.is_done() && is_sent()) break;
      step(&job, !moved);
    }
  } catch (...) {
    flow_ = nullptr;
    throw;
  }
  flow_ = nullptr;
  flow.finish();
}

void Channel::reduce_by_ring(const Job& job) {
  if (!ring_)
    throw Failure(Code::FailedPrecondition, errors::kNotAvailable,
                  {.what = "this data engine was made without Gloo's ring", .help = "make it with .ring = true"});
  ordered_sum(job.dtype, job.inputs.data(), static_cast<int>(job.inputs.size()), job.outputs.data(), 1, job.elements);
  ring_->all_reduce(job.dtype, job.outputs[0], job.elements, job.deadline);
  const void* const sum = job.outputs[0];
  ordered_sum(job.dtype, &sum, 1, job.outputs.data(), static_cast<int>(job.outputs.size()), job.elements, job.divisor);
}

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
  ::poll(polled.data(), polled.size(), may_sleep ? poll_milliseconds(until) : 0);
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
