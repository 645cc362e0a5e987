#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/base/descriptor.h"
#include "lockstep/comm/coordination/server.h"
#include "lockstep/comm/coordination/wire.h"

namespace lockstep::coordination {

/// A member's side of its session: introduces itself, beats, asks and hears. The chief's process has one, too.
class Client final : public Coordinator {
 public:
  using Clock = std::chrono::steady_clock;

  Client(const JoinOptions& options, std::string key);
  ~Client() override;

  /// Joins the chief, which may not run yet or be restarted meanwhile; the chief's own process starts it, comes in the
  /// same way, and also finds out why others are missing.
  void join();

  int self() const override { return self_.id; }
  std::uint64_t generation() const override;
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  void barrier(std::string_view name, Deadline deadline) override;
  void require_same(std::string_view name, const std::vector<std::string>& lines, Deadline deadline) override;
  void set_place(std::int64_t step, std::string_view place) override;
  std::vector<MemberState> states() override;
  void report_failure(const Error& error) override;
  std::optional<Error> failure() const override;
  std::optional<Error> wait_for_failure(Deadline deadline) const override;
  void on_failure(std::function<void(const Error&)> callback) override;
  void leave(Deadline deadline) override;

 private:
  enum class Stage { Out, Introduced, Accepted, Joined, Left };
  using Lock = std::unique_lock<std::mutex>;

  // join.cpp
  void take_port();
  void ask_who_has_the_seat();
  Stage wait_while(Stage stage, Clock::time_point until);
  std::string missing();
  [[noreturn]] void give_up_waiting(const std::string& chief_missing);

  // session.cpp
  std::shared_ptr<Wire> introduce(const std::string& target, bool port_taken);
  void received(const wire::FromChief& message);
  void ended(const std::string& why);
  void challenged(const wire::Greeting& challenge, Lock& lock);
  void chief_is_gone(const std::string& how, const std::string& seen);
  void post(Lock& lock, wire::ToChief message);
  void post_beat(Lock& lock);
  void end_session();
  void run_heart();
  void check_chief(Clock::time_point now, Clock::duration gap);

  // client.cpp
  template <class Condition>
  void wait(Lock& lock, const Deadline& deadline, Condition condition) const;
  std::optional<wire::FromChief> exchange(Lock& lock, wire::Call call, const Deadline& deadline);
  wire::FromChief ask(wire::Call call);
  void require_joined() const;
  void wait_for_others_to_leave(Server& server, const Deadline& deadline);

  const JoinOptions options_;
  const std::string key_;
  const Member &self_, &chief_;
  const int exceptions_ = std::uncaught_exceptions();
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<Server> server_;  // in the chief's process
  std::shared_ptr<Wire> wire_;
  Descriptor port_;
  Stage stage_ = Stage::Out;
  bool port_taken_ = false;
  bool leaving_ = false;
  bool over_ = false;
  bool told_ = false;
  std::string nonce_;
  std::string token_;
  std::uint64_t generation_ = 0;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, std::optional<wire::FromChief>> answers_;
  wire::Roster roster_;
  wire::Seat place_;
  std::string missing_;
  std::string why_ended_ = "no answer";
  Clock::time_point last_heard_ = {};
  std::optional<Error> failure_;
  std::vector<std::function<void(const Error&)>> callbacks_;
  std::thread heart_;
};

}  // namespace lockstep::coordination
