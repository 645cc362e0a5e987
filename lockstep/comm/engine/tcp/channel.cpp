#include "lockstep/comm/engine/tcp/channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/engine/blocked_signals.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {

Channel::Channel(const Settings& settings, int index, FailureState& failure, std::vector<Connection> connections,
                 std::unique_ptr<Ring> ring)
    : settings_(settings), index_(index), failure_(failure), ring_(std::move(ring)) {
  const std::size_t words = (sizeof(Fingerprint) + settings_.inline_bytes + 7) / 8;
  for (auto& frames : frames_) frames.assign(connections.size(), {std::vector<std::uint64_t>(words)});
  for (std::size_t rank = 0; rank < connections.size(); ++rank)
    if (connections[rank].socket) {
      watch_.add(static_cast<int>(rank), connections[rank].socket.get(), connections[rank].address);
      links_.push_back(std::make_unique<Link>(std::move(connections[rank]), static_cast<int>(rank)));
      next_beat_ = Deadline::after(kBeatInterval);
    }
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    throw ResourceExhausted(errors::kNoThreads, {.what = "the system does not let the data engine start a thread",
                                                 .help = "raise the limit of threads (ulimit -u)"});
  }
}

Channel::~Channel() {
  stop();
  thread_.join();
}

void Channel::stop() {
  stopping_ = true;
  signal_event(event_.get());
}

std::uint64_t Channel::submit(const Collective& collective, Deadline limit) {
  std::unique_lock lock(mutex_);
  auto job = std::make_shared<Job>(collective, settings_, submitted_, limit);
  if (failure_.is_set()) throw_error(failure_.get(describe(job->fingerprint)));
  jobs_.emplace(submitted_, std::move(job));
  const std::uint64_t number = submitted_++;
  lock.unlock();
  signal_event(event_.get());
  return number;
}

void Channel::wait(std::uint64_t number, std::chrono::milliseconds patience, const OnLate& on_late) {
  std::unique_lock lock(mutex_);
  const auto found = jobs_.find(number);
  if (found == jobs_.end())
    throw InvalidArgument(errors::kBadOption,
                          {.what = "wait was called with a ticket that is not of this engine or was waited for before",
                           .help = "wait once for each ticket of submit"});
  const std::shared_ptr<Job> job = found->second;
  const auto is_done = [&] { return job->is_done(); };
  ++waiting_;
  if (on_late && !done_.wait_for(lock, patience, is_done)) {
    lock.unlock();
    on_late(job->name, late());
    lock.lock();
  }
  done_.wait(lock, is_done);
  --waiting_;
  jobs_.erase(number);
  if (job->error) throw_error(*job->error);
}

// The workers behind this one; this worker's current collective may be an earlier one than a caller waits for.
std::vector<int> Channel::late() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < settings_.workers; ++rank)
    if (reached_[rank] < reached_[settings_.rank]) ranks.push_back(rank);
  return ranks;
}

std::string Channel::log() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& job : begun_) text += str("channel ", index_, " ", job->log_line(), "\n");
  return text;
}

// ---- the thread

void Channel::run() noexcept {
  try {
    while (const std::shared_ptr<Job> job = next_job()) {
      for (const auto& link : links_) check_closed(*link, job.get());
      send_frames(*job);
      await_frames(*job);
      if (job->implementation == Implementation::Ring) {
        reduce_by_ring(*job);
      } else if (job->is_inline) {
        finish_inline(*job);
      } else {
        move_data(*job);
      }
      ++sequence_;
      const std::lock_guard lock(mutex_);
      job->ended = Job::Clock::now();
      done_.notify_all();
    }
    say_goodbye();
    end_all_jobs([](const Job& job) {
      return Cancelled(errors::kPeerLost, {.what = "the data engine was destroyed before this collective began",
                                           .where = describe(job.fingerprint),
                                           .help = "wait for every ticket before the strategy ends"});
    });
  } catch (...) {
    failure_.set(current_error());
    report_failure();
  }
  links_.clear();
}

std::shared_ptr<Job> Channel::next_job() {
  while (true) {
    failure_.throw_if_set();  // the others learn of it even if this engine is being destroyed
    if (stopping_) return nullptr;
    std::unique_lock lock(mutex_);
    if (const auto found = jobs_.find(sequence_); found != jobs_.end()) {
      found->second->began = Job::Clock::now();
      begun_.push_back(found->second);
      if (begun_.size() > kLogged) begun_.pop_front();
      return found->second;
    }
    lock.unlock();
    step(nullptr, true);
  }
}

// ---- agreement on a collective, and small ones sent within the frames

void Channel::send_frames(const Job& job) {
  const int rank = settings_.rank;
  Frame& own = frames()[rank];
  std::memcpy(own.words.data(), &job.fingerprint, sizeof(Fingerprint));
  ++reached_[rank];
  std::size_t bytes = 0;
  if (job.is_inline && job.reduces()) {
    const SumPlan& plan = settings_.plan;
    for (int piece = plan.first_piece[rank]; piece < plan.first_piece[rank + 1]; ++piece) {
      const IdRange ids = plan.pieces[piece].ids;
      void* const to = own.payload() + bytes;
      ordered_sum(job.dtype, job.inputs.data() + (ids.lo - rank * settings_.replicas), ids.hi - ids.lo, &to, 1,
                  job.elements);
      bytes += job.elements * job.element_bytes();
    }
  } else if (job.is_inline && !job.inputs.empty()) {
    bytes = (job.counts.empty() ? job.elements : job.counts[rank]) * job.element_bytes();
    if (bytes > 0) std::memcpy(own.payload(), job.inputs[0], bytes);
  }
  const Message message{MessageKind::Frame, 0, static_cast<std::uint32_t>(sequence_), 0,
                        static_cast<std::uint32_t>(sizeof(Fingerprint) + bytes)};
  for (const auto& link : links_) {
    link->send(message, own.words.data());
    link->push();
  }
}

void Channel::await_frames(const Job& job) {
  const auto are_here = [&] {
    return late().empty() && std::ranges::all_of(links_, [](const auto& link) { return link->queued() == 0; });
  };
  while (!are_here()) step(&job, true);
  const auto is_equal = [&](const Frame& frame) { return frame.fingerprint() == job.fingerprint; };
  if (std::ranges::all_of(frames(), is_equal)) return;
  std::vector<Fingerprint> all;
  for (const Frame& frame : frames()) all.push_back(frame.fingerprint());
  throw FailedPrecondition(errors::kCollectiveMismatch, compare(all, index_));
}

void Channel::finish_inline(const Job& job) {
  const std::size_t size = job.element_bytes();
  const auto copy = [&](int from, Shard part) {
    for (void* const output : job.outputs)
      if (part.size() > 0)
        std::memcpy(static_cast<std::byte*>(output) + part.begin * size, frames()[from].payload(), part.size() * size);
  };
  if (job.kind == CollectiveKind::Broadcast) copy(job.root, {0, job.elements});
  if (job.kind == CollectiveKind::AllGather)
    for (int rank = 0; rank < settings_.workers; ++rank) copy(rank, job.shards[rank]);
  if (!job.reduces()) return;
  const SumPlan& plan = settings_.plan;
  const Shard part = job.kind == CollectiveKind::AllReduce ? Shard{0, job.elements} : job.shards[settings_.rank];
  std::vector<const void*> values;
  for (int piece = 0; piece < static_cast<int>(plan.pieces.size()); ++piece) {
    const int worker = plan.pieces[piece].worker;
    const auto place = static_cast<std::size_t>(piece - plan.first_piece[worker]);
    values.push_back(frames()[worker].payload() + (place * job.elements + part.begin) * size);
  }
  const std::size_t stride = (settings_.inline_bytes + 63) / 64 * 64;
  finish_sum(plan, job.dtype, std::move(values), scratch_.at_least(plan.steps.size() * stride), stride, job.outputs,
             part.size(), job.divisor);
}

// ---- large collectives

void Channel::move_data(const Job& job) {
  Flow& flow = flow_.emplace(settings_, job, scratch_);
  const auto is_sent = [](const auto& link) { return link->queued() == 0; };
  // Whether there was anything to send, or there is now room for more.
  const auto feed_links = [&] {
    bool fed = false;
    for (const auto& link : links_) {
      while (flow.feed(*link)) fed = true;
      const std::size_t before = link->queued();
      link->push();
      if (link->queued() < before) fed = true;
    }
    return fed;
  };
  while (true) {
    bool moved = feed_links();
    while (flow.advance()) {
      feed_links();
      moved = true;
    }
    if (flow.is_done() && std::ranges::all_of(links_, is_sent)) break;
    step(&job, !moved);
  }
  for (const auto& link : links_) {
    // A worker that gave up announces it before it changes memory that is read in place.
    if (!link->reads_in_place()) continue;
    link->pull(*this);
    check_closed(*link, &job);
  }
  flow.finish();
  flow_.reset();
}

void Channel::reduce_by_ring(const Job& job) {
  if (!ring_)
    throw FailedPrecondition(errors::kNotAvailable, {.what = "this data engine was made without Gloo's ring",
                                                     .help = "make it with .ring = true"});
  ordered_sum(job.dtype, job.inputs.data(), static_cast<int>(job.inputs.size()), job.outputs.data(), 1, job.elements);
  ring_->all_reduce(job.dtype, job.outputs[0], job.elements, job.deadline);
  const void* const sum = job.outputs[0];
  ordered_sum(job.dtype, &sum, 1, job.outputs.data(), static_cast<int>(job.outputs.size()), job.elements, job.divisor);
}

void Channel::end_all_jobs(FunctionRef<Error(const Job&)> error_of) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, job] : jobs_) {
    if (job->is_done()) continue;
    job->error = error_of(*job);
    job->ended = Job::Clock::now();
  }
  done_.notify_all();
}

}  // namespace lockstep::engine
