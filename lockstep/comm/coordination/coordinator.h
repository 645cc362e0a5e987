#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/tls_files.h"

namespace lockstep::coordination {

/// One entry of the cluster.
struct Member {
  int id = 0;                ///< its place among the members
  std::string name = {};     ///< as messages call it: "worker 2"
  std::string address = {};  ///< "host:port"; IPv6 as "[::1]:2222"
};

struct JoinOptions {
  std::vector<Member> members = {};  ///< all of them in the same order everywhere; the first is the chief
  int self = 0;                      ///< this process's id
  std::string cluster = {};          ///< its description, the same for all members (L108)
  std::string machine = {};          ///< what kind of machine this is; another one is a warning on the chief
  std::uint64_t incarnation = 0;     ///< how often the job was restarted; refused if it differs from the chief's
  TlsFiles tls = {};  ///< empty: from LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY

  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds waiting_log_interval = std::chrono::seconds(5);
  std::chrono::milliseconds heartbeat_interval = std::chrono::milliseconds(500);
  std::chrono::milliseconds dead_after = std::chrono::seconds(3);      ///< without a heartbeat
  std::chrono::milliseconds slow_warning = std::chrono::seconds(10);   ///< a barrier waits this long: one log line
  std::chrono::milliseconds leave_timeout = std::chrono::seconds(30);  ///< of the destructor
};

enum class Presence { Absent, Here, Left, Lost };

struct MemberState {
  Member member = {};
  Presence presence = Presence::Absent;
  std::int64_t step = 0;  ///< as set_place said when the last heartbeat was sent
  std::string place = {};
};

/// "call 812 of run, all-reduce"; empty if nothing is known.
LOCKSTEP_EXPORT std::string place_text(std::int64_t step, const std::string& place);

/// This process's membership in a job. The chief hosts the service on its entry's address; every other member keeps its
/// entry's port bound, so that a second process with the same entry is noticed. Heartbeats come from a thread of their own.
///
///     auto job = Coordinator::join({.members = members, .self = 1, .cluster = text});
///     job->barrier("ready", Deadline::after(1min));
///     job->leave(Deadline::after(10s));
///
/// Thread-safe, except for destruction. After a failure every call throws it; the first failure of the job wins and is the
/// same on all members. `fork` without `exec` is not supported while one lives.
class LOCKSTEP_EXPORT Coordinator {
 public:
  /// Returns when all members are here. While it waits it logs who is missing and why.
  static std::unique_ptr<Coordinator> join(const JoinOptions& options);

  /// Leaves, waiting at most `leave_timeout`; after a failure, or while an exception unwinds the stack, closes at once.
  virtual ~Coordinator() = default;

  virtual int self() const = 0;
  virtual std::uint64_t generation() const = 0;  ///< of this job; no other job of the chief has the same

  /// The store. Keys have at most 4 KB, values 1 MB, all together 64 MB.
  virtual void set(std::string_view key, std::string_view value) = 0;
  virtual std::string get(std::string_view key, Deadline deadline) = 0;  ///< waits until someone has set it

  /// Returns when all members have called it with this name. An error names those who are missing.
  virtual void barrier(std::string_view name, Deadline deadline) = 0;

  /// A barrier that compares: all members must give the same lines, else every one of them gets an error (L109) with the
  /// first lines that differ. At most 1 MB.
  virtual void require_same(std::string_view name, const std::vector<std::string>& lines, Deadline deadline) = 0;

  /// What this member is doing, for messages of others. Cheap; sent with the next heartbeat.
  virtual void set_place(std::int64_t step, std::string_view place) = 0;
  /// What all members are doing; after a failure, what was known before. Nothing once this one has left.
  virtual std::vector<MemberState> states() = 0;

  /// What has failed here ends the job for all, unless something has ended it before. Returns at once.
  virtual void report_failure(const Error& error) = 0;
  /// Why the job ended early: the same on every worker, whoever saw it first.
  virtual std::optional<Error> failure() const = 0;
  /// Nothing if none comes before the deadline. On the chief, also waits a moment until the others have been sent it: its
  /// process may be about to end.
  virtual std::optional<Error> wait_for_failure(Deadline deadline) const = 0;

  /// Called once, on a thread of Lockstep's, or at once if there is a failure already. Must not destroy the coordinator.
  virtual void on_failure(std::function<void(const Error&)> callback) = 0;

  /// Others that wait for this member get an error at once; those who do not are not disturbed. The chief waits for the
  /// others to leave, because their service ends with it.
  virtual void leave(Deadline deadline) = 0;
};

}  // namespace lockstep::coordination
