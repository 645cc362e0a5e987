#include "lockstep/comm/engine/tcp/channel.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "lockstep/base/text.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {

Channel::Channel(ChannelSettings settings, FailureState& failure, std::vector<Descriptor> connections,
                 std::unique_ptr<RingReducer> ring)
    : settings_(std::move(settings)),
      failure_(failure),
      ring_(std::move(ring)),
      left_after_(connections.size(), kStays),
      event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_)
    throw Failure(Code::ResourceExhausted, errors::kNoThreads,
                  {.what = "the system does not give the data engine an eventfd",
                   .help = "raise the limit of open files (ulimit -n)"});
  const std::size_t words = (sizeof(Fingerprint) + settings_.inline_bytes + 7) / 8;
  for (int k = 0; k < 2; ++k) {
    frames_[k].assign(connections.size(), std::vector<std::uint64_t>(words));
    has_frame_[k].assign(connections.size(), false);
  }
  for (std::size_t rank = 0; rank < connections.size(); ++rank)
    links_.push_back(connections[rank] ? std::make_unique<Link>(std::move(connections[rank]), static_cast<int>(rank))
                                       : nullptr);
  failure_.add(*this);
  // Signals are the program's own business.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    failure_.remove(*this);
    throw Failure(Code::ResourceExhausted, errors::kNoThreads,
                  {.what = "the system does not let the data engine start a thread",
                   .help = "raise the limit of threads (ulimit -u)"});
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Channel::~Channel() {
  stop();
  thread_.join();
  failure_.remove(*this);
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
    failure_.throw_if_set();  // the others learn of it even if this engine is being destroyed
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

void Channel::move_data(const Job& job) {
  Flow flow(settings_.flow, job, scratch_);
  flow_ = &flow;
  const auto feed_all = [&] {
    bool fed = false;
    for (const auto& link : links_) {
      if (!link) continue;
      while (flow.feed(*link)) fed = true;
      const std::size_t before = link->queued();
      link->push();
      if (link->queued() < before) fed = true;  // there may be room for more
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

}  // namespace lockstep::engine
