#include "lockstep/comm/local/replica_team.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"

namespace lockstep::local {

using detail::Frame;
using detail::Progress;
using detail::ReplicaState;
using detail::Slot;

namespace {

/// Every meeting has two arrivals.
long long number_of(std::uint32_t arrivals) { return (static_cast<long long>(arrivals) + 1) / 2; }

Progress progress_of(const Slot& slot) { return Progress::unpack(slot.progress.load(std::memory_order_seq_cst)); }

}  // namespace

thread_local bool RunInTurn::next_ = false;

// ---------------------------------------------------------------------------------------------------------------------
// The team

ReplicaTeam::ReplicaTeam(Options options) : options_(std::move(options)), event_(options_.spin) {
  if (options_.size < 1) {
    throw InvalidArgument(errors::kBadOption, {.what = str("the number of replicas must be >= 1, got ", options_.size),
                                               .help = "name at least one device"});
  }
  workers_ = std::make_unique<Worker[]>(static_cast<std::size_t>(options_.size));
  levels_.push_back(std::make_unique<Slot[]>(static_cast<std::size_t>(options_.size)));
  threads_.reserve(static_cast<std::size_t>(options_.size - 1));
  try {
    for (int replica = 1; replica < options_.size; ++replica)
      threads_.emplace_back([this, replica] { thread_main(replica); });
  } catch (const std::exception& e) {
    stop_threads();
    throw ResourceExhausted(
        errors::kNoThreads,
        {.what = str("only ", threads_.size() + 1, " of ", options_.size, " replica threads could be started"),
         .seen = e.what(),
         .help = "use fewer devices, or raise the limits on threads (ulimit -u) and memory (ulimit -v)"});
  }
}

ReplicaTeam::~ReplicaTeam() { stop_threads(); }

void ReplicaTeam::stop_threads() {
  job_body_ = nullptr;  // a job without a body ends the threads
  job_number_.fetch_add(1, std::memory_order_seq_cst);
  event_.announce();
  for (auto& thread : threads_) thread.join();
}

void ReplicaTeam::thread_main(int replica) {
  if (options_.on_thread_start) options_.on_thread_start(replica);
  while (true) {
    wait(
        replica, [&] { return has_new_job(replica); }, Deadline::never());
    if (job_body_ == nullptr) return;
    serve_next_job(replica);
  }
}

bool ReplicaTeam::has_new_job(int replica) const {
  return job_number_.load(std::memory_order_seq_cst) != workers_[replica].served_job;
}

// Written only on change, so that the cache line stays with all threads that read it.
void ReplicaTeam::note_core(int replica) {
  std::atomic<int>& noted = workers_[replica].core;
  const int core = sched_getcpu();
  if (noted.load(std::memory_order_relaxed) != core) noted.store(core, std::memory_order_relaxed);
}

/// On a busy machine the scheduler may put replicas on one core. A replica that spins there delays the others.
bool ReplicaTeam::shares_core(int replica) const {
  const int core = sched_getcpu();
  for (int k = 0; k < size(); ++k) {
    if (k != replica && workers_[k].core.load(std::memory_order_relaxed) == core) return true;
  }
  return false;
}

bool ReplicaTeam::wait(int replica, FunctionRef<bool()> ready, const Deadline& deadline) {
  return event_.wait(
      ready, [&] { return shares_core(replica); }, deadline);
}

void ReplicaTeam::serve_next_job(int replica) {
  workers_[replica].served_job = job_number_.load(std::memory_order_seq_cst);
  run_replica(*job_body_, *job_frame_, replica);
}

void ReplicaTeam::publish(std::uint64_t word, Slot& slot) {
  slot.progress.store(word, std::memory_order_seq_cst);
  event_.announce();
}

void ReplicaTeam::run_replica(const Body& body, Frame& frame, int replica) {
  Slot& slot = frame.slots[replica];
  slot.error = nullptr;
  slot.unwound = false;
  note_core(replica);
  // Until this store the slot belongs to an earlier run, which others read as "not there yet".
  slot.progress.store(Progress{.run = frame.run}.pack(), std::memory_order_seq_cst);
  Seat seat(*this, frame, replica);
  auto state = ReplicaState::Finished;
  try {
    seat.await_turn();
    body(seat);
  } catch (const ReplicaUnwound&) {
    slot.unwound = true;
    state = ReplicaState::Failed;
  } catch (...) {
    slot.error = std::current_exception();
    state = ReplicaState::Failed;
  }
  Progress end = progress_of(slot);
  end.state = state;
  publish(end.pack(), slot);
}

/// Holds the right to run: one calling thread at a time, which may reenter from a merge function.
class ReplicaTeam::RunGuard {
 public:
  explicit RunGuard(ReplicaTeam& team) : team_(team) {
    std::thread::id caller{};
    const auto me = std::this_thread::get_id();
    if (!team_.caller_.compare_exchange_strong(caller, me) && caller != me) {
      throw FailedPrecondition(errors::kConcurrentRun,
                               {.what = "run was called on a strategy that is already running",
                                .seen = "the strategy is inside run on another thread",
                                .help = "call run from one thread at a time, or make a strategy per thread"});
    }
    ++team_.depth_;
  }
  ~RunGuard() {
    if (--team_.depth_ == 0) team_.caller_.store(std::thread::id{});
  }
  RunGuard(const RunGuard&) = delete;
  RunGuard& operator=(const RunGuard&) = delete;

 private:
  ReplicaTeam& team_;
};

std::optional<ReplicaFailure> ReplicaTeam::run(Body body) {
  RunGuard guard(*this);
  const auto level = static_cast<std::size_t>(depth_ - 1);
  if (levels_.size() <= level) levels_.push_back(std::make_unique<Slot[]>(static_cast<std::size_t>(size())));

  Frame frame;
  frame.slots = levels_[level].get();
  frame.in_turn = RunInTurn::take();
  if (depth_ == 1) is_in_turn_ = frame.in_turn;
  if (options_.deferred) frame.in_turn = is_in_turn_;  // also in merge functions
  frame.run = job_number_.load(std::memory_order_relaxed) + 1;
  job_body_ = &body;
  job_frame_ = &frame;
  if (options_.deferred) options_.deferred->begin_run();
  if (size() > 1) {
    job_number_.store(frame.run, std::memory_order_seq_cst);
    event_.announce();
  } else {
    job_number_.store(frame.run, std::memory_order_relaxed);
  }

  run_replica(body, frame, 0);
  auto failure = collect(frame);
  if (options_.deferred) options_.deferred->end_run();
  return failure;
}

std::optional<ReplicaFailure> ReplicaTeam::collect(Frame& frame) {
  const auto missing = [&]() -> int {
    for (int k = 1; k < size(); ++k) {
      const Progress other = progress_of(frame.slots[k]);
      if (other.run != frame.run || !other.has_stopped()) return k;
    }
    return -1;
  };
  wait_naming_missing(
      0, [&] { return missing() < 0; },
      [&] { return str(name_of(missing()), " to end its function; a replica cannot be interrupted in user code"); });

  std::optional<ReplicaFailure> first;
  bool first_is_cause = false;
  bool any_failed = false;
  for (int k = 0; k < size(); ++k) {
    Slot& slot = frame.slots[k];
    any_failed |= progress_of(slot).state == ReplicaState::Failed;
    // A program may have converted its unwinding into another exception: that is not the root cause.
    const bool is_cause = slot.error && !slot.unwound;
    if (slot.error && (!first || (is_cause && !first_is_cause))) {
      first = ReplicaFailure{k, slot.error};
      first_is_cause = is_cause;
    } else if (is_cause && slot.error != first->error) {
      first->others.push_back({k, slot.error});
    }
    slot.error = nullptr;
  }
  if (any_failed && !first) {
    first = ReplicaFailure{0, std::make_exception_ptr(Internal(
                                  errors::kInternal, {.what = "a run failed without a cause",
                                                      .help = "this is a bug in Lockstep: please report it"}))};
  }
  return first;
}

void ReplicaTeam::wait_naming_missing(int replica, FunctionRef<bool()> ready, FunctionRef<std::string()> describe) {
  auto slice = options_.warn_after;
  auto waited = std::chrono::milliseconds::zero();
  while (!wait(replica, ready, Deadline::after(slice))) {
    waited += slice;
    say_warning(str("waiting for ", std::chrono::duration<double>(waited).count(), " s for ", describe()));
    slice *= 2;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// A seat

std::uint32_t Seat::arrive(const char* name, const void* payload) {
  Slot& slot = frame_->slots[replica_];
  slot.payload = payload;
  slot.meeting_name = name;
  team_->note_core(replica_);
  return arrive_again();
}

// The second arrival of a meeting publishes nothing: others may still read the payload of the first.
std::uint32_t Seat::arrive_again() {
  if (team_->options_.deferred) team_->options_.deferred->mark(replica_);
  Slot& slot = frame_->slots[replica_];
  Progress mine = progress_of(slot);
  mine.meetings = (mine.meetings + 1) & Progress::kMeetingMask;
  team_->publish(mine.pack(), slot);
  return mine.meetings;
}

void Seat::await_all(std::uint32_t meeting, const Deadline& deadline) {
  int missing = -1;
  int stopped = -1;
  const auto decided = [&] {
    missing = stopped = -1;
    for (int k = 0; k < size(); ++k) {
      if (k == replica_) continue;
      const Progress other = progress_of(frame_->slots[k]);
      if (other.run == frame_->run && other.has_reached(meeting)) continue;
      if (other.run == frame_->run && other.has_stopped()) {
        stopped = k;
        return true;
      }
      if (missing < 0) missing = k;
    }
    return missing < 0;
  };
  const auto describe = [&] {
    return str(team_->name_of(missing), " to reach ", frame_->slots[replica_].meeting_name, " #", number_of(meeting),
               " (", team_->name_of(replica_), " is there)");
  };
  if (!deadline.is_never() && !team_->wait(replica_, decided, deadline)) {
    // The others may be about to read this replica's payload, so it stays; all of them leave with the error together.
    frame_->late_meeting.store(std::uint64_t{meeting} + 1, std::memory_order_seq_cst);
    say(Severity::Error, str("deadline exceeded while waiting for ", describe()));
  }
  team_->wait_naming_missing(replica_, decided, describe);
  if (stopped < 0) return wait_for_deferred_work();
  throw_if_late(meeting);
  throw_unequal(stopped);
}

// In turn also inside a meeting: recording for a GPU must use one thread at a time.
void Seat::wait_for_deferred_work() {
  if (team_->options_.deferred == nullptr) return;
  await_turn();
  team_->options_.deferred->wait_for_others(replica_);
}

void Seat::await_turn() {
  if (!frame_->in_turn || replica_ == 0) return;
  const Slot& before = frame_->slots[replica_ - 1];
  const std::uint32_t next = (progress_of(frame_->slots[replica_]).meetings + 1) & Progress::kMeetingMask;
  Progress other;
  const auto is_mine = [&] {
    other = progress_of(before);
    return other.run == frame_->run && (other.has_stopped() || other.has_reached(next));
  };
  team_->wait(replica_, is_mine, Deadline::never());
  if (other.state != ReplicaState::Failed) return;
  frame_->slots[replica_].unwound = true;
  throw ReplicaUnwound();
}

void Seat::throw_unequal(int stopped) const {
  const Slot& slot = frame_->slots[stopped];
  const Progress other = progress_of(slot);
  if (other.state == ReplicaState::Failed) {
    frame_->slots[replica_].unwound = true;
    throw ReplicaUnwound();
  }
  throw FailedPrecondition(
      errors::kUnequalMeetings,
      {.what = "replicas made a different number of merge_call and collective calls",
       .where = str(frame_->slots[replica_].meeting_name, ", on ", team_->name_of(replica_)),
       .seen = str(team_->name_of(stopped), " returned after ", counted(number_of(other.meetings), "meeting"),
                   " while ", team_->name_of(replica_), " waits in ", frame_->slots[replica_].meeting_name),
       .help =
           "make the same merge_call, all_reduce, all_gather, aggregated assign and minimize (or reduce_gradients "
           "and step) calls on every replica, even if its batch is empty: the loss of zero rows is a valid loss; do "
           "not put them under a condition that differs between replicas"});
}

void Seat::throw_if_late(std::uint32_t meeting) const {
  if (frame_->late_meeting.load(std::memory_order_seq_cst) != std::uint64_t{meeting} + 1) return;
  throw DeadlineExceeded(errors::kTimeout,
                         {.what = str(frame_->slots[replica_].meeting_name, " did not finish within its timeout"),
                          .where = str("on ", team_->name_of(replica_)),
                          .help = "raise timeout_seconds in CommunicationOptions, or find out why a replica is late"});
}

// All replicas compare the same names, so all decide alike.
void Seat::check_names() const {
  const char* first = meeting_of(0);
  for (int k = 1; k < size(); ++k) {
    if (meeting_of(k) == first || std::strcmp(meeting_of(k), first) == 0) continue;
    throw FailedPrecondition(
        errors::kDifferentCollective,
        {.what = "replicas met in different operations",
         .seen = str(team_->name_of(0), " called ", first, " while ", team_->name_of(k), " called ", meeting_of(k)),
         .help = "make the same calls in the same order on every replica"});
  }
}

void Seat::exchange(const char* name, const void* payload, FunctionRef<void()> work, const Deadline& deadline) {
  if (size() == 1) {
    frame_->slots[0].payload = payload;
    frame_->slots[0].meeting_name = name;
    return work();
  }
  const std::uint32_t shown = arrive(name, payload);
  await_all(shown, deadline);
  std::exception_ptr error;
  try {
    check_names();
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const std::uint32_t worked = arrive_again();
  await_all(worked, Deadline::never());
  if (error) std::rethrow_exception(error);
  throw_if_late(shown);
  await_turn();
}

void Seat::lead(const char* name, const void* payload, FunctionRef<void()> act, const Deadline& deadline) {
  if (size() == 1) {
    frame_->slots[0].payload = payload;
    frame_->slots[0].meeting_name = name;
    return act();
  }
  const std::uint32_t shown = arrive(name, payload);
  if (replica_ == 0) {
    await_all(shown, deadline);
    std::exception_ptr error;
    try {
      check_names();
      throw_if_late(shown);
      act();
    } catch (...) {
      error = std::current_exception();
    }
    frame_->lead_error = error;
    // Waiting for the others keeps names, payloads and the error in place until all have left the meeting; after a
    // failure too, because a program may catch it on every replica and continue.
    await_all(arrive_again(), Deadline::never());
    if (error) std::rethrow_exception(error);
  } else {
    await_leader(shown, deadline);
    const bool same_operation = std::strcmp(meeting_of(0), name) == 0;
    const std::exception_ptr error = same_operation ? frame_->lead_error : nullptr;
    arrive_again();
    if (error) std::rethrow_exception(error);
    if (!same_operation) {  // replica 0 came for something else and raises that error itself
      frame_->slots[replica_].unwound = true;
      throw ReplicaUnwound();
    }
  }
  await_turn();
}

// Replica 0 arrives once more when it has acted. Until then this thread serves the runs it starts.
void Seat::await_leader(std::uint32_t meeting, const Deadline& deadline) {
  const std::uint32_t acted = (meeting + 1) & Progress::kMeetingMask;
  int stopped = -1;
  enum class News { None, Acted, Job, Broken } news = News::None;
  const auto has_news = [&] {
    news = News::None;
    // Unless all arrived, replica 0 has not acted, even if it is further on because its program caught the error.
    for (int k = 1; k < size() && news == News::None; ++k) {
      const Progress other = progress_of(frame_->slots[k]);
      if (other.run != frame_->run || !other.has_stopped() || other.has_reached(meeting)) continue;
      stopped = k;
      news = News::Broken;
    }
    if (news == News::Broken) return true;
    const Progress leader = progress_of(frame_->slots[0]);
    if (leader.run == frame_->run && leader.has_reached(acted)) {
      news = News::Acted;
    } else if (team_->has_new_job(replica_)) {
      news = News::Job;
    } else if (leader.run == frame_->run && leader.has_stopped()) {
      stopped = 0;
      news = News::Broken;
    }
    return news != News::None;
  };
  const auto describe = [&] {
    return str(team_->name_of(0), " to finish ", frame_->slots[replica_].meeting_name, " #", number_of(meeting));
  };
  if (!deadline.is_never() && !team_->wait(replica_, has_news, deadline) &&
      !progress_of(frame_->slots[0]).has_reached(meeting)) {
    frame_->late_meeting.store(std::uint64_t{meeting} + 1, std::memory_order_seq_cst);
    say(Severity::Error, str("deadline exceeded while waiting for ", describe()));
  }
  while (true) {
    team_->wait_naming_missing(replica_, has_news, describe);
    if (news == News::Acted) return wait_for_deferred_work();
    if (news == News::Broken) {
      throw_if_late(meeting);
      throw_unequal(stopped);
    }
    team_->serve_next_job(replica_);
  }
}

}  // namespace lockstep::local
