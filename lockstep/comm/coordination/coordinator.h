#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/cluster/cluster_description.h"
#include "lockstep/comm/tls_files.h"
#include "lockstep/comm/way_probe.h"

namespace lockstep::wire {  // coordination.proto
class Call;
class FromChief;
class Greeting;
class ToChief;
}  // namespace lockstep::wire

namespace lockstep::coordination {

class Server;
class Wire;

struct JoinOptions {
  std::vector<WorkerEntry> members = {};  ///< by id: the same order everywhere
  int self = 0;                           ///< this process's id
  int chief = 0;                          ///< id of the member that hosts the service
  std::string cluster = {};               ///< the cluster's description, the same for all members (L108)
  std::string machine = {};               ///< the kind of this machine; a different kind is a warning on the chief
  std::uint64_t incarnation = 0;          ///< how often the job was restarted; rejected if it differs from the chief's
  TlsFiles tls = {};  ///< empty: from LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY

  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds waiting_log_interval = std::chrono::seconds(5);
  std::chrono::milliseconds heartbeat_interval = std::chrono::milliseconds(500);
  /// Time without a heartbeat: a worker that is frozen or cut off is noticed within 3 s, including a heartbeat
  /// interval.
  std::chrono::milliseconds dead_after = std::chrono::milliseconds(2500);
  std::chrono::milliseconds slow_warning = std::chrono::seconds(10);   ///< a barrier waits this long: one log line
  std::chrono::milliseconds leave_timeout = std::chrono::seconds(30);  ///< limit of the destructor
};

enum class Presence { Absent, Here, Left, Lost };

struct MemberState {
  int id = 0;
  WorkerEntry member = {};
  Presence presence = Presence::Absent;
  std::string place = {};  ///< set_place's last value in a heartbeat
};

/// This process's membership in a job: introduces itself to the chief, sends heartbeats and receives failures. The
/// chief hosts the service on its entry's address; every other member keeps its entry's port bound, so that a second
/// process with the same entry is noticed. Heartbeats come from a separate thread.
///
///     auto job = Coordinator::join({.members = members, .self = 1, .cluster = text});
///     job->barrier("ready", Deadline::after(1min));
///     job->leave(Deadline::after(10s));
///
/// One object is a member's part in one generation of the job: its options name the members, and a failure ends only
/// that generation. The remaining members can join the next one from the same processes, with a different process in
/// the lost one's place and another chief.
///
/// Thread-safe, except for destruction. After a failure every call throws it; the first failure of the job wins and is
/// the same on all members. `fork` without `exec` is not supported while one exists.
class LOCKSTEP_EXPORT Coordinator {
 public:
  /// Returns when all members are here. Logs which members are missing and why while it waits.
  static std::unique_ptr<Coordinator> join(JoinOptions options);

  /// Leaves, waiting at most `leave_timeout`; after a failure, or during stack unwinding, closes at once.
  ~Coordinator();

  std::uint64_t generation() const {
    return generation_;
  }  ///< number of this job; no other job of the chief has the same

  /// The store. Keys have at most 4 KB, values 1 MB, all together 64 MB.
  void set(std::string_view key, std::string_view value);
  std::string get(std::string_view key, Deadline deadline);  ///< waits until a member has set it

  /// Returns when all members have called it with this name. An error names the missing ones.
  void barrier(std::string_view name, Deadline deadline) { require_same(name, {}, deadline); }

  /// A barrier that compares: all members must pass the same lines, otherwise every one of them gets an error (L109)
  /// with the first lines that differ. At most 1 MB.
  void require_same(std::string_view name, const std::vector<std::string>& lines, Deadline deadline);

  /// Sets this member's activity for others' messages: "call 812 of run". Cheap; sent with the next heartbeat.
  void set_place(std::string_view place);
  /// The activities of all members; after a failure, the last known ones. Empty once this member has left.
  std::vector<MemberState> states();

  /// Ends the job for all with this local failure, unless something ended it before. Returns at once.
  void report_failure(const Error& error);
  /// Reports that this member's data does not reach another member; repeat it while that is so. The chief ends the job
  /// with the cause: the two cannot reach each other, or one of them is gone. Returns at once.
  void report_cut(int member);
  /// Why the job ended early: the same on every worker, whichever saw it first.
  std::optional<Error> failure() const;
  /// Nothing if none comes before the deadline. On the chief, also waits a moment until it was sent to the others: its
  /// process may be about to end.
  std::optional<Error> wait_for_failure(Deadline deadline) const;

  /// Called once, on one of Lockstep's threads, or at once if there is a failure already. Must not destroy the
  /// coordinator.
  void on_failure(std::function<void(const Error&)> callback);

  /// Others that wait for this member get an error at once; no other member is affected. The chief waits for the others
  /// to leave, because their service ends with it.
  void leave(Deadline deadline);

 private:
  enum class Stage { Out, Introduced, Accepted, Joined, Left };
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  Coordinator(const JoinOptions& options, std::string key);

  // join.cpp
  void find_chief_and_wait_for_all();
  void take_port();
  void ask_who_holds_the_task();
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
  void heartbeat_loop();
  bool is_in_session() const { return !failure_ && (stage_ == Stage::Accepted || stage_ == Stage::Joined); }
  void check_chief(Clock::time_point now, std::optional<WayProbe>& probe);

  // coordinator.cpp
  std::shared_ptr<const wire::FromChief> exchange(Lock& lock, wire::Call call, const Deadline& deadline);
  wire::FromChief ask(wire::Call call);
  void require_joined() const;
  void wait_for_others_to_leave(Server& server, const Deadline& deadline);

  const JoinOptions options_;
  const std::string key_;
  const WorkerEntry& self_ = options_.members.at(static_cast<std::size_t>(options_.self));
  const WorkerEntry& chief_ = options_.members.at(static_cast<std::size_t>(options_.chief));
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
  bool chief_has_proved_itself_ = false;  // whether it proved that it knows the job key
  std::string nonce_;
  std::string token_;
  std::uint64_t generation_ = 0;  // kept once it has joined
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, std::shared_ptr<const wire::FromChief>> answers_;  // null until it arrives
  std::shared_ptr<wire::FromChief> roster_;
  std::string place_;
  std::string missing_;
  std::string why_ended_ = "no answer";
  std::string chief_target_;  // its numeric address
  Clock::time_point last_heard_ = {};
  std::optional<Error> failure_;
  std::vector<std::function<void(const Error&)>> callbacks_;
  std::thread heartbeat_thread_{
      [this] { heartbeat_loop(); }};  // last: it starts when the other members are initialized
};

}  // namespace lockstep::coordination
