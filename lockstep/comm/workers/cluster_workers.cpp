#include "lockstep/comm/workers/cluster_workers.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "lockstep/base/environment.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/disagreement.h"
#include "lockstep/comm/engine/engine.h"

namespace lockstep {
namespace {

/// A dead worker is noticed by its connections at once, and by its heartbeats soon after.
constexpr std::chrono::seconds kRootCauseWait(4);
constexpr std::chrono::milliseconds kNewsWait(50);
constexpr std::chrono::seconds kReportWait(1);
constexpr std::chrono::seconds kSlowAfter(10);

std::string place_of(const coordination::MemberState& state) {
  return str(to_string(state.member), " was ",
             state.place.empty() ? "in no call of run yet" : str("last seen in ", state.place));
}

std::vector<std::string> hosts_of(const ClusterDescription& cluster) {
  std::vector<std::string> hosts;
  for (const WorkerEntry& worker : cluster.workers) hosts.push_back(worker.address.host);
  return hosts;
}

/// The workers of a cluster: coordination over gRPC, data through the engine. Whichever notices first, an engine's
/// connection or a peer's heartbeats, all workers throw the same error: the coordinator's.
class ClusterWorkers final : public WorkerGroup {
 public:
  /// `number`: the strategy's among those of its job.
  ClusterWorkers(const WorkerGroupOptions& options, std::shared_ptr<Membership> membership, std::size_t number)
      : WorkerGroup({options.cluster.id, options.cluster.num_workers(), options.replicas}),
        self_(to_string(options.cluster.self())),
        membership_(std::move(membership)) {
    const Deadline limit = Deadline::after(std::chrono::duration<double>(options.join_seconds));
    // A job may make several strategies: the coordinator numbers comparisons with the same name.
    coordinator().require_same("strategy", options.facts, limit);
    engine_ = or_fail([&] {
      return std::make_shared<Engine>(EngineOptions{
          .rank = rank(),
          .workers = workers(),
          .replicas = replicas(),
          .address = options.bind_address.empty() ? options.cluster.self().address.host : options.bind_address,
          .port = options.data_port,
          .hosts = hosts_of(options.cluster),
          .prefix = str("strategy ", number, "/engine"),
          .store = {.set = [this](const auto& key, const auto& value) { coordinator().set(key, value); },
                    .get = [this](const auto& key, Deadline deadline) { return coordinator().get(key, deadline); },
                    .check = [this] { check(); }},
          .connect = limit,
          .call_seconds = options.collective_seconds,
          .ring = options.ring,
          .on_cut = [membership = std::weak_ptr(membership_)](int worker) {
            if (const auto alive = membership.lock()) alive->coordinator->report_cut(worker);
          }});
    });
    coordinator().on_failure([engine = std::weak_ptr(engine_)](const Error& failure) {
      if (const auto alive = engine.lock()) alive->abort(failure);
    });
  }
  ~ClusterWorkers() override { set_gpu_workers(nullptr); }  // whose thread calls this object

  Ticket submit(Channel channel, const Collective& collective, Deadline deadline) override {
    return or_fail([&] { return engine_->submit(channel, collective, deadline); });
  }

  void wait(Ticket ticket) override {
    or_fail([&] { engine_->wait(ticket, kSlowAfter, [this](auto name, const auto& late) { warn_of(name, late); }); });
  }

  void check() override {
    if (const auto failure = coordinator().failure()) throw_error(*failure);
  }

  void set_place(std::string_view place) override { coordinator().set_place(place); }

  void report(const Error& error) override {
    coordinator().report_failure(error);
    const auto failure = coordinator().wait_for_failure(Deadline::after(kReportWait));
    // At once rather than when the news comes back: pending collectives use memory that the program is about to free.
    engine_->abort(failure ? *failure : error);
  }

  void report(const std::string& what) override {
    report(Unavailable(errors::kPeerFailed, {.what = str("the program failed on ", self_),
                                             .seen = what,
                                             .help = str("look at the log of ", self_, "; all workers have stopped")}));
  }

 private:
  coordination::Coordinator& coordinator() const { return *membership_->coordinator; }

  template <class Action>
  auto or_fail(const Action& action) -> decltype(action()) {
    try {
      return action();
    } catch (const Error& error) {
      fail_with(error);
    }
  }

  /// Makes `error`, seen by this worker, the job's failure, unless there is one already; throws the job's.
  [[noreturn]] void fail_with(const Error& error) {
    if (engine_) write_log();
    ErrorText text = error.text();
    if (error.number() == errors::kPeerLost) await_root_cause();
    if (error.number() == errors::kTimeout && text.seen.empty()) {
      for (const auto& state : coordinator().states())
        if (state.id != rank()) text.seen += str(text.seen.empty() ? "" : "; ", place_of(state));
    }
    const Error seen(error.code(), error.number(), std::move(text));
    coordinator().report_failure(seen);
    const auto failure = coordinator().wait_for_failure(Deadline::after(kRootCauseWait));
    throw_error(failure.value_or(seen));
  }

  /// One worker's view of another's death is seldom the cause. The coordinator knows more, a moment later.
  void await_root_cause() {
    for (const auto deadline = Deadline::after(kRootCauseWait); !deadline.expired();) {
      if (coordinator().wait_for_failure(Deadline::after(kNewsWait))) return;
      const auto known = coordinator().states();
      const auto has_left = [](const auto& state) { return state.presence == coordination::Presence::Left; };
      // Not a failure: a program has ended. Once the session is over, there is no chief to ask.
      if (known.empty() || std::ranges::any_of(known, has_left)) return;
    }
  }

  void warn_of(std::string_view name, const std::vector<int>& late) {
    std::vector<std::string> absent, waiting;
    for (const auto& state : coordinator().states()) {
      if (std::ranges::count(late, state.id) != 0) {
        absent.push_back(place_of(state));
      } else if (state.id != rank()) {
        waiting.push_back(state.member.name());
      }
    }
    say_warning(str(name, " has been waiting for ", kSlowAfter.count(), " s; ",
                    absent.empty() ? "all workers are there" : str("not there yet: ", list_of(absent)),
                    absent.empty() || waiting.empty() ? "" : str("; also waiting: ", list_of(waiting))));
  }

  void write_log() {
    if (has_written_log_.exchange(true)) return;
    std::error_code ignored;
    std::filesystem::path folder = environment_variable("LOCKSTEP_FAILURE_DIR");
    if (folder.empty()) folder = std::filesystem::temp_directory_path(ignored);
    const auto path = folder / str("lockstep-collectives-worker", rank(), "-", ::getpid(), ".log");
    std::ofstream file(path);
    file << engine_->log();
    if (file.flush()) say_info(str("the last collectives of this worker are in ", path.string()));
  }

  const std::string self_;  ///< "worker 1 (host1:2222)"
  const std::shared_ptr<Membership> membership_;
  std::shared_ptr<Engine> engine_;
  std::atomic<bool> has_written_log_{false};
};

/// Joins the cluster, or finds the membership of another strategy of this process.
std::shared_ptr<WorkerGroup> make_cluster_workers(const WorkerGroupOptions& options) {
  static std::mutex mutex;
  static auto& memberships = *new std::map<std::string, std::weak_ptr<Membership>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Membership>& known = memberships[to_string(options.cluster)];
  std::shared_ptr<Membership> membership = known.lock();
  if (!membership) known = membership = std::make_shared<Membership>(options);
  return membership->add_strategy(options);
}

/// Linking is enough: the target Lockstep::cluster asks the linker for `lockstep_cluster_component`, which includes
/// this file.
const bool is_installed = (set_worker_group_maker(make_cluster_workers), true);

}  // namespace

Membership::Membership(const WorkerGroupOptions& options)
    : coordinator(coordination::Coordinator::join(
          {.members = options.cluster.workers,
           .self = options.cluster.id,
           .cluster = to_string(options.cluster.training),
           .machine = options.machine,
           .incarnation = std::strtoull(environment_variable("LOCKSTEP_GENERATION").c_str(), nullptr, 10),
           .tls = options.tls,
           .join_timeout =
               std::chrono::milliseconds(static_cast<std::int64_t>(std::min(options.join_seconds, 1e9) * 1000))})) {}

std::shared_ptr<WorkerGroup> Membership::add_strategy(const WorkerGroupOptions& options) {
  // A worker that does something else meanwhile does it with a strategy that all have.
  for (const auto& strategy : strategies_) {
    if (const auto first = strategy.lock()) {  // its owner may release it meanwhile
      first->barrier("constructor of another MultiWorkerMirroredStrategy", Deadline::by_default());
      break;
    }
  }
  // It counts even if it cannot be made: keys in the store contain its number.
  const std::size_t number = strategies_.size();
  strategies_.emplace_back();
  auto made = std::make_shared<ClusterWorkers>(options, shared_from_this(), number);
  strategies_[number] = made;
  return made;
}

}  // namespace lockstep

extern "C" LOCKSTEP_EXPORT int lockstep_cluster_component() { return lockstep::is_installed ? 1 : 0; }
