#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/engine/collective_log.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/tcp/failure_state.h"
#include "lockstep/comm/engine/tcp/flow.h"
#include "lockstep/comm/engine/tcp/job.h"
#include "lockstep/comm/engine/tcp/link.h"

namespace lockstep::engine {

/// An all-reduce by other means, for Implementation::Ring. Sums the arrays of all workers in place.
class RingReducer {
 public:
  virtual ~RingReducer() = default;
  virtual void all_reduce(Dtype dtype, void* data, std::size_t elements, Deadline deadline) = 0;
};

struct ChannelSettings {
  int index = 0;
  int replicas = 1;
  double call_seconds = 0;
  std::size_t inline_bytes = 0;
  FlowSettings flow;
};

/// One sequence of collectives: its own connections to all workers and a thread that carries the collectives out in
/// the order of submission. Even while it has nothing to do the thread listens, so that a worker's end is known before
/// the next collective begins.
class Channel final : private Inbox {
 public:
  Channel(ChannelSettings settings, FailureState& failure, std::vector<Descriptor> connections,
          std::unique_ptr<RingReducer> ring);
  ~Channel();

  std::uint64_t submit(const lockstep_collective& collective);  ///< number of the collective
  /// Waits until it is done and forgets it; a failure comes as an exception. `seconds` < 0: its own limit.
  void wait(std::uint64_t number, double seconds);
  void stop();  ///< lets the thread tell the others and end
  void wake();  ///< the thread looks at failures and requests
  std::string log() const { return log_.text(settings_.index); }

 private:
  static constexpr std::uint64_t kStays = ~std::uint64_t{0};
  using Frames = std::vector<std::vector<std::uint64_t>>;  // by rank; words, for their alignment

  void* target(Link& from, const Message& message) override;
  void arrived(Link& from, const Message& message) override;

  void run() noexcept;
  std::shared_ptr<Job> next_job();
  void carry_out(const std::shared_ptr<Job>& job);
  void send_frames(const Job& job);
  void await_frames(const Job& job);
  void move_data(const Job& job);
  void finish_inline(const Job& job);
  void reduce_by_ring(const Job& job);
  void step(const Job* job, bool may_sleep);
  void check(const Job* job);
  void check_closed(const Link& link, const Job* job);
  void say_goodbye() noexcept;
  void report_failure() noexcept;
  void end_all_jobs(const lockstep_status& status) noexcept;
  [[noreturn]] void throw_timeout(const Job& job) const;

  bool is_inline(const Job& job) const;
  std::byte* payload(int rank) const;
  const Fingerprint& fingerprint(int rank) const;
  std::size_t parity() const { return sequence_ % 2; }

  const ChannelSettings settings_;
  FailureState& failure_;
  std::unique_ptr<RingReducer> ring_;
  CollectiveLog log_;

  // Of the thread alone.
  std::vector<std::unique_ptr<Link>> links_;  // by rank; none for the own one
  std::uint64_t sequence_ = 0;                // of the collective that runs or comes next
  Frames frames_[2];                          // of this collective and the next one
  std::vector<bool> has_frame_[2];
  std::vector<std::uint64_t> left_after_;  // collectives that a worker made before it left
  std::map<int, lockstep_status> notices_;
  Scratch scratch_;
  Flow* flow_ = nullptr;

  Descriptor event_;
  std::atomic<bool> attention_ = true;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_;
  std::uint64_t submitted_ = 0;
  bool stopping_ = false;
  std::optional<std::uint64_t> overdue_;  // whoever waited for it gave up
  std::thread thread_;
};

}  // namespace lockstep::engine
