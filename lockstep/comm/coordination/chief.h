#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/coordination/messages.h"
#include "lockstep/comm/way_probe.h"

namespace lockstep::coordination {

/// Delivers the chief's messages. Called inside the calls below; must not call back.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void send(std::uint64_t connection, wire::FromChief message) = 0;
  virtual void close(std::uint64_t connection) = 0;  ///< after all pending messages
};

/// The chief's state: which members are here, the store, which member waits for what, the first failure. It has no
/// thread, socket or clock: its caller passes in messages and the time, one call at a time.
class Chief {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Connection = std::uint64_t;

  Chief(const JoinOptions& options, std::string key, Outbox& outbox, Time now);

  void opened(Connection connection, Time now);
  void received(Connection connection, const std::string& bytes, Time now);
  void closed(Connection connection, Time now);
  void tick(Time now);

  struct Doubted {
    int member = 0;
    Connection connection = 0;
  };
  /// Members whose heartbeats are late. The caller should probe their machines.
  std::vector<Doubted> in_doubt(Time now) const;
  void note_answers(int member, const Answers& answers);

  /// Whether its member proved the job key and was admitted.
  bool is_admitted(Connection connection) const;
  std::vector<WorkerEntry> members(Presence presence) const;
  /// Reports to all waiting members why the missing ones are missing.
  void announce(const std::string& missing_text);
  void fail(const Error& failure);
  std::uint64_t generation() const { return generation_; }

 private:
  enum class Stage { Opened, Challenged, Seated };

  struct Session {
    Stage stage = Stage::Opened;
    Time opened = {};
    wire::Greeting hello = {};
    std::string nonce = {};
    std::string token = {};
  };

  struct Member {
    int id = 0;
    WorkerEntry entry = {};
    Presence presence = Presence::Absent;
    Connection connection = 0;
    Time joined = {};
    Time last_beat = {};
    Time steady_since = {};      // the end of the last gap between heartbeats
    Answers answers = {};        // its machine's answers since its last heartbeat
    wire::MemberInfo last = {};  // its own last report
  };

  struct Waiter {
    std::uint64_t request = 0;
    int member = 0;
    Time since = {};
    Time until = Time::max();
    wire::Call call = {};  // a GET or a BARRIER

    bool is_at_barrier() const { return call.verb() == wire::Call::BARRIER; }
  };
  using Meeting = std::map<int, std::list<Waiter>::const_iterator>;  // members at one barrier

  // chief_join.cpp: an Error thrown here is the reason for rejecting the session
  void hello(Connection connection, Session& session, const wire::ToChief& message);
  void proof(Connection connection, Session& session, const wire::ToChief& message, Time now);
  void admit(Connection connection, Session& session, const wire::Details& details, Time now);
  [[noreturn]] void refuse_second(const Member& holder, const wire::MemberInfo& second, Time now);
  void require_same_cluster(const WorkerEntry& member, const wire::Details& details);
  void drop_unknown(Connection connection, const std::string& why);
  void end(Connection connection);

  // chief_meetings.cpp
  void serve(Member& member, std::uint64_t request, const wire::Call& call, Time now);
  void set(const Waiter& waiter);
  Meeting meeting_at(const std::string& barrier) const;
  void conclude(const std::string& barrier);
  void end_waits_without(const Member& gone);
  void check_waits(Time now);
  std::string missing_at(const std::string& barrier) const;
  void reply(const Waiter& waiter, wire::FromChief answer);

  // chief_cuts.cpp: what failed when members cannot reach each other
  void cut(const Member& member, int other, Time now);
  bool fail_if_cut_off(Time now);

  // chief.cpp
  void beat(Member& member, const std::string& place, Time now);
  void lose(Member& member, const std::string& how, const std::string& seen, Time now);
  Member& chief() { return members_[static_cast<std::size_t>(options_.chief)]; }
  /// Whether this generation began and failed.
  bool is_over() const { return started_ && failure_; }
  wire::FromChief roster() const;
  Member* member_of(int member);
  void send(Connection connection, wire::FromChief message);
  void tell_all(const wire::FromChief& message);

  const JoinOptions options_;
  const std::string key_;
  Outbox& outbox_;
  const std::uint64_t generation_;
  bool started_ = false;
  Time last_tick_;
  Time last_stranger_ = {};
  int strangers_ = 0;
  std::map<Connection, Session> sessions_;
  std::vector<Member> members_;
  std::map<std::string, std::string> store_;
  std::size_t stored_bytes_ = 0;
  std::list<Waiter> waiting_;     // in order of arrival
  std::set<std::string> warned_;  // barriers whose waiting members were warned
  std::optional<Error> failure_;
};

}  // namespace lockstep::coordination
