#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"
#include "lockstep/comm/coordination/port.h"
#include "lockstep/comm/coordination/wire.h"

namespace lockstep::coordination {

/// A member's side of its session: introduces itself, beats, asks and hears. The chief's process has one, too.
class Client {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Stage { Out, Introduced, Accepted, Joined, Left };

  Client(const JoinOptions& options, std::string key);
  ~Client();

  /// Starts a session. With `port_taken` it only asks who holds this member's seat.
  void introduce(std::unique_ptr<Wire> wire, bool port_taken);
  /// Waits for the next stage, a failure, the end of the stream or the time.
  Stage wait_while(Stage stage, Clock::time_point until);
  void give_up_session();

  /// The answer's value. Throws what the chief answered, or the job's failure.
  std::string ask(wire::ToChief message);
  std::string meet(const std::string& name, const std::vector<std::string>* lines, Deadline deadline);
  std::vector<MemberState> states();

  void keep(HeldPort port);
  void set_place(std::int64_t step, std::string_view place);
  void report(Failure failure);
  std::optional<Failure> failure() const;
  std::optional<Failure> wait_for_failure(Deadline deadline) const;
  void on_failure(std::function<void(const Failure&)> callback);
  bool leave(Deadline deadline);
  std::uint64_t generation() const;
  std::string missing() const;
  std::string why_ended() const;

 private:
  void received(const wire::FromChief& message);
  void ended(const std::string& why);
  void challenged(const wire::FromChief& message, wire::ToChief& answer);
  void set_failure(Failure failure);
  void chief_is_gone(const std::string& how, const std::string& seen);
  std::unique_lock<std::mutex> post(std::unique_lock<std::mutex> lock, wire::ToChief message);
  void run_heart();
  void check_chief(Clock::time_point now, Clock::duration gap);
  void require_joined() const;

  const JoinOptions options_;
  const std::string key_;
  const Member self_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<Wire> wire_;
  HeldPort port_;
  Stage stage_ = Stage::Out;
  bool port_taken_ = false;
  bool over_ = false;
  bool told_ = false;
  std::string nonce_;
  std::string token_;
  std::uint64_t generation_ = 0;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, std::shared_ptr<std::optional<wire::Reply>>> answers_;
  std::map<std::string, std::uint64_t> rounds_;
  std::vector<MemberState> roster_;
  std::string missing_;
  std::string why_ended_ = "no answer";
  Clock::time_point last_heard_ = {};
  std::int64_t step_ = 0;
  std::string place_;
  std::optional<Failure> failure_;
  std::vector<std::function<void(const Failure&)>> callbacks_;
  std::thread heart_;
};

}  // namespace lockstep::coordination
