#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/comm/local/wake_event.h"

/// The thread engine: R replicas of one process that run a function at the same time and meet.
///
/// Replica 0 is the thread that calls `run`; the others are threads that live as long as the team. Inside a run every
/// replica holds a `Seat`. Replicas meet by calling the same kind of meeting on their seats, in the same order:
///
///   * `exchange`: every replica shows a payload to all others (collectives),
///   * `lead`:     replica 0 acts for all while the others wait (merge points); it may start another run meanwhile.
///
/// A meeting ends in the same way for all: either every replica arrives, or one stops before it. When a replica throws,
/// the others are unwound at their next meeting (`ReplicaUnwound`), and `run` returns the root cause of the lowest
/// replica, which `Strategy::raise_failure` throws. When a replica returns early, the others get FailedPrecondition at
/// the meeting that it missed. When a replica is later than a meeting's deadline, all of them get DeadlineExceeded,
/// once it has arrived: none leaves while another may still read its payload. After any of these the team can run
/// again. Nothing here depends on tensors.
namespace lockstep::local {

class ReplicaTeam;

/// Thrown into a replica that waits for a failed one. It is never the root cause.
class ReplicaUnwound final : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped because another replica failed"; }
};

/// Which replica failed, and how.
struct ReplicaFailure {
  int replica = 0;
  std::exception_ptr error;
  std::vector<ReplicaFailure> others = {};  ///< higher replicas that failed too, for reasons of their own
};

namespace detail {

enum class ReplicaState : std::uint8_t { Running, Finished, Failed };

/// A replica's progress in one run, in one word that others read without a lock.
struct Progress {
  std::uint32_t run = 0;       ///< the run it belongs to; a slot of another run has not started yet
  std::uint32_t meetings = 0;  ///< arrivals so far
  ReplicaState state = ReplicaState::Running;

  static Progress unpack(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word >> 2) & kMeetingMask,
            static_cast<ReplicaState>(word & 3)};
  }
  std::uint64_t pack() const {
    return (std::uint64_t{run} << 32) | (std::uint64_t{meetings & kMeetingMask} << 2) |
           static_cast<std::uint64_t>(state);
  }
  /// Meetings are counted modulo 2^30; replicas are at most two apart.
  bool has_reached(std::uint32_t meeting) const { return ((meetings - meeting) & kMeetingMask) < kMeetingMask / 2; }
  bool has_stopped() const { return state != ReplicaState::Running; }

  static constexpr std::uint32_t kMeetingMask = (1u << 30) - 1;
};

struct alignas(128) Slot {
  std::atomic<std::uint64_t> progress{0};
  const void* payload = nullptr;
  const char* meeting_name = "";  ///< name of the last arrival; a literal
  std::exception_ptr error;
  bool unwound = false;  ///< stopped because of another replica, so its error is not the root cause
};

/// One run: its replicas' slots. Runs nest, one level per merge function that calls run.
struct Frame {
  Slot* slots = nullptr;
  std::uint32_t run = 0;
  std::atomic<std::uint64_t> late_meeting{0};  ///< 1 + the meeting that missed its deadline; 0 = none
  std::exception_ptr lead_error;               ///< thrown by `act` of the current `lead`
  bool in_turn = false;                        ///< one replica works at a time; see RunInTurn
};

}  // namespace detail

/// Makes the next run started by this thread let one replica work at a time: each begins, and continues after a
/// meeting, once the previous one waits in its next meeting or has returned; with deferred work also inside a meeting.
class RunInTurn {
 public:
  static void set(bool in_turn) { next_ = in_turn; }
  /// For the run that begins; runs in its merge functions do not take turns.
  static bool take() {
    const bool in_turn = next_;
    next_ = false;
    return in_turn;
  }

 private:
  static thread_local bool next_;
};

/// Work that continues after the call that started it has returned, such as a GPU's. Runs and meetings order it as they
/// order the threads.
class DeferredWork {
 public:
  virtual ~DeferredWork() = default;
  /// Called by the run's caller, before its replicas begin and after all have ended.
  virtual void begin_run() = 0;
  virtual void end_run() = 0;
  // On the thread of `replica`:
  /// Before the replica arrives: marks its work so far, which the others may use.
  virtual void mark(int replica) = 0;
  /// After all have arrived: later work of the replica comes after the work that the others marked.
  virtual void wait_for_others(int replica) = 0;
};

/// A replica's handle in a run. Valid on its own thread, until its function returns.
class Seat {
 public:
  int replica() const { return replica_; }
  int size() const;

  /// Arrives with `payload`, waits until all have arrived, calls `work`, waits until all have finished. Inside `work`,
  /// `payload_of(k)` is replica k's payload. An exception thrown by `work` surfaces after the second wait, so that
  /// payloads stay valid for the others.
  void exchange(const char* name, const void* payload, FunctionRef<void()> work,
                const Deadline& deadline = Deadline::never());

  /// All arrive with `payload`; replica 0 then calls `act` while the others wait, and may write into their payloads.
  /// Only replica 0's `act` is called. Its exception is thrown on every replica.
  void lead(const char* name, const void* payload, FunctionRef<void()> act,
            const Deadline& deadline = Deadline::never());

  const void* payload_of(int replica) const { return frame_->slots[replica].payload; }
  /// The name of the meeting that `replica` came for; valid where `payload_of` is.
  const char* meeting_of(int replica) const { return frame_->slots[replica].meeting_name; }

 private:
  friend class ReplicaTeam;
  Seat(ReplicaTeam& team, detail::Frame& frame, int replica) : team_(&team), frame_(&frame), replica_(replica) {}

  std::uint32_t arrive(const char* name, const void* payload);
  std::uint32_t arrive_again();
  void await_all(std::uint32_t meeting, const Deadline& deadline);
  void await_leader(std::uint32_t meeting, const Deadline& deadline);
  void await_turn();
  void wait_for_deferred_work();
  void check_names() const;
  void throw_if_late(std::uint32_t meeting) const;
  [[noreturn]] void throw_unequal(int stopped) const;

  ReplicaTeam* team_;
  detail::Frame* frame_;
  int replica_;
};

class ReplicaTeam {
 public:
  struct Options {
    int size = 1;
    int first_id = 0;  ///< number of replica 0 among the replicas of all workers, as in errors and the log
    std::function<void(int replica)> on_thread_start;               ///< runs once on every thread the team starts
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);  ///< before a waiting thread sleeps
    std::chrono::milliseconds warn_after =
        std::chrono::seconds(10);      ///< a replica waited for longer is named in the log
    DeferredWork* deferred = nullptr;  ///< work of all replicas; null: a replica's work is done when its calls return
  };

  explicit ReplicaTeam(Options options);
  ~ReplicaTeam();
  ReplicaTeam(const ReplicaTeam&) = delete;
  ReplicaTeam& operator=(const ReplicaTeam&) = delete;

  int size() const { return options_.size; }

  /// Calls `body` once per replica and returns when all have stopped: nothing if all finished, otherwise the root cause
  /// with the lowest replica id, and the other root causes with it. May be called again from inside `lead`. A second
  /// thread gets FailedPrecondition during a run.
  std::optional<ReplicaFailure> run(FunctionRef<void(Seat&)> body);

 private:
  friend class Seat;
  using Body = FunctionRef<void(Seat&)>;

  class RunGuard;

  std::string name_of(int replica) const { return "replica " + std::to_string(options_.first_id + replica); }
  void thread_main(int replica);
  void stop_threads();
  void serve_next_job(int replica);
  void run_replica(const Body& body, detail::Frame& frame, int replica);
  void publish(std::uint64_t word, detail::Slot& slot);
  bool wait(int replica, FunctionRef<bool()> ready, const Deadline& deadline);
  void wait_naming_missing(int replica, FunctionRef<bool()> ready, FunctionRef<std::string()> describe);
  bool has_new_job(int replica) const;
  void note_core(int replica);
  bool shares_core(int replica) const;
  std::optional<ReplicaFailure> collect(detail::Frame& frame);

  Options options_;
  WakeEvent event_;

  // The current job. Written by the caller of `run` while all threads wait, read after `job_number_` has changed.
  const Body* job_body_ = nullptr;
  detail::Frame* job_frame_ = nullptr;
  std::atomic<std::uint32_t> job_number_{0};
  struct alignas(128) Worker {
    std::uint32_t served_job = 0;  ///< used only by the replica's own thread
    std::atomic<int> core{-1};     ///< its last known core
  };
  std::unique_ptr<Worker[]> workers_;

  std::vector<std::unique_ptr<detail::Slot[]>> levels_;  ///< slots by depth of nesting, kept for the next run
  std::atomic<std::thread::id> caller_{};                ///< the thread inside `run`; none = idle
  int depth_ = 0;
  bool is_in_turn_ = false;  ///< for the outermost run

  std::vector<std::thread> threads_;
};

inline int Seat::size() const { return team_->size(); }

}  // namespace lockstep::local
