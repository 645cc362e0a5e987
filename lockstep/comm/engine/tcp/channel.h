#pragma once

#include <poll.h>

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

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/engine/failure_state.h"
#include "lockstep/comm/engine/ring.h"
#include "lockstep/comm/engine/tcp/flow.h"
#include "lockstep/comm/engine/tcp/job.h"
#include "lockstep/comm/engine/tcp/link.h"
#include "lockstep/comm/engine/tcp/link_watch.h"

namespace lockstep::engine {

/// One sequence of collectives: its own connections to all workers and a thread that executes the collectives in the
/// order of submission. The thread listens even while idle, so that a worker's end is known before the next collective
/// begins.
class Channel final : private Inbox {
 public:
  Channel(const Settings& settings, int index, FailureState& failure, std::vector<Connection> connections,
          std::unique_ptr<Ring> ring);
  ~Channel();

  /// Returns the number of the collective.
  std::uint64_t submit(const Collective& collective, Deadline limit);
  /// Waits until it is done and forgets it; throws its failure.
  void wait(std::uint64_t number, std::chrono::milliseconds patience, const OnLate& on_late);
  void stop();              ///< lets the thread inform the others and end
  std::string log() const;  ///< the last collectives, one line each

 private:
  static constexpr std::uint64_t kStays = ~std::uint64_t{0};
  static constexpr std::size_t kLogged = 1000;

  struct Frame {
    std::vector<std::uint64_t> words;  // aligned storage

    const Fingerprint& fingerprint() const { return *reinterpret_cast<const Fingerprint*>(words.data()); }
    std::byte* payload() { return reinterpret_cast<std::byte*>(words.data()) + sizeof(Fingerprint); }
  };
  std::vector<Frame>& frames() { return frames_[sequence_ % 2]; }

  void* target(Link& from, const Message& message) override;
  void arrived(Link& from, const Message& message) override;

  // channel.cpp: the thread and its collectives
  void run() noexcept;
  std::shared_ptr<Job> next_job();
  std::vector<int> late() const;
  void move_data(const Job& job);
  void reduce_by_ring(const Job& job);
  void end_all_jobs(FunctionRef<Error(const Job&)> error_of) noexcept;
  void send_frames(const Job& job);
  void await_frames(const Job& job);
  void finish_inline(const Job& job);

  // channel_links.cpp: the connections
  void step(const Job* job, bool may_sleep);
  void check(const Job* job) const;
  void check_closed(const Link& link, const Job* job);
  void send_beats();
  void look_at_ways();
  std::string place_of(const Job& job) const;
  void say_goodbye() noexcept;
  void report_failure() noexcept;

  const Settings& settings_;
  const int index_;
  FailureState& failure_;
  const std::unique_ptr<Ring> ring_;

  // Used only by the thread.
  std::vector<std::unique_ptr<Link>> links_;  // links to the other workers, in order of ranks
  LinkWatch watch_;
  Deadline next_beat_ = Deadline::never();
  std::optional<std::pair<int, Deadline>> cut_;  // a worker that cannot be reached; until then others may report why
  std::vector<pollfd> polled_;
  std::uint64_t sequence_ = 0;    // number of the current or next collective
  std::vector<Frame> frames_[2];  // frames of this collective and the next one, by rank
  // Collectives that a worker made before it left.
  std::vector<std::uint64_t> left_after_ = std::vector<std::uint64_t>(settings_.workers, kStays);
  std::map<int, std::string> notices_;  // errors of other workers, as they come
  Scratch scratch_;
  std::optional<Flow> flow_;

  // By rank: collectives whose frames have arrived.
  std::vector<std::atomic<std::uint64_t>> reached_ = std::vector<std::atomic<std::uint64_t>>(settings_.workers);
  const Descriptor event_ = make_event();
  std::atomic<bool> stopping_ = false;
  std::atomic<int> waiting_ = 0;  // callers in wait()
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_;
  std::deque<std::shared_ptr<const Job>> begun_;
  std::uint64_t submitted_ = 0;
  std::thread thread_;
};

}  // namespace lockstep::engine
