#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/base/vocabulary.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/detail/one_thread.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/values/type_name.h"

// One run: what its arguments must be, what the replicas do, and what is thrown when one of them fails.
namespace lockstep {
namespace {

/// A replica's seat while a run goes on. Runs nest: a merge function may start another.
class SeatScope {
 public:
  SeatScope(local::Seat*& place, local::Seat* seat) : place_(place), outer_(std::exchange(place, seat)) {}
  ~SeatScope() { place_ = outer_; }
  SeatScope(const SeatScope&) = delete;
  SeatScope& operator=(const SeatScope&) = delete;

 private:
  local::Seat*& place_;
  local::Seat* outer_;
};

/// An exception in words.
struct Said {
  std::string type;
  std::string what;  ///< one line of Lockstep's errors, all of others
  std::string text;

  bool operator==(const Said& other) const { return type == other.type && what == other.what; }
};

Said said_by(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {type_name(typeid(e)), e.text().what, e.what()};
  } catch (const c10::Error& e) {
    return {type_name(typeid(e)), e.what_without_backtrace(), e.what_without_backtrace()};
  } catch (const std::exception& e) {
    return {type_name(typeid(e)), e.what(), e.what()};
  } catch (...) {
    return {type_name(*abi::__cxa_current_exception_type()), "unknown exception", "unknown exception"};
  }
}

/// The caller sees these in no other way.
void log_other_failures(const Strategy& strategy, const Said& thrown,
                        const std::vector<local::ReplicaFailure>& others) {
  constexpr std::size_t kMostLines = 3;
  std::vector<Said> seen{thrown};
  for (const auto& other : others) {
    Said said = said_by(other.error);
    if (std::find(seen.begin(), seen.end(), said) != seen.end()) continue;
    if (seen.size() > kMostLines) return say_warning("more replicas failed in other ways");
    say_warning(str(detail::replica_name(strategy, static_cast<std::size_t>(other.replica)),
                    " failed too, in another way: ", said.type, ": ", verbatim(said.what)));
    seen.push_back(std::move(said));
  }
}

/// Throws the exception in flight, with the reason that may be behind it: the replica's batch has no rows.
[[noreturn]] void rethrow_of_empty_batch() {
  const std::string reason =
      "this replica's batch has no rows, because the step has fewer rows than replicas: make batches larger, leave out a "
      "short last one with drop_remainder, or write code that takes no rows (flatten(1), not view({size, -1}))";
  try {
    throw;
  } catch (Error& e) {
    if (e.number() >= errors::kWrongContext) {  // what happened to other workers has other reasons
      ErrorText text = e.text();
      text.help = text.help.empty() ? reason : str(text.help, "; ", reason);
      e = Error(e.code(), e.number(), std::move(text));
    }
    throw;
  } catch (c10::Error& e) {
    e.add_context(in_words_here(str("help: ", reason)));
    throw;
  }
}

using detail::this_thread;

}  // namespace

void detail::throw_component_count(const char* operation, std::size_t argument, const char* kind,
                                   std::size_t components, std::size_t wanted) {
  const bool is_of_update = std::string_view(operation).starts_with("update");
  throw InvalidArgument(
      errors::kComponent,
      {.what = str("argument ", argument, " of ", operation, " holds a ", kind, " of ",
                   counted(static_cast<long long>(components), "component"),
                   components < wanted ? ", too few for " : ", too many for ",
                   counted(static_cast<long long>(wanted), is_of_update ? "component" : "local replica")),
       .where = operation,
       .help =
           "pass a value with one component per local replica: from distribute, values_from_function or run of the same "
           "strategy"});
}

void detail::require_placed(const char* operation, std::size_t argument, const Placement& placement,
                            const std::vector<int>& replicas) {
  for (const int replica : replicas) {
    if (placement.component_of(replica) == placement.devices.size())
      throw_not_placed(placement, replica, str("argument ", argument, " of ", operation));
  }
}

void detail::bring_to(at::Device device, at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_meta()) tensor = tensor.to(device);
}

std::vector<int> detail::first_replicas(std::size_t count) {
  std::vector<int> replicas(count);
  std::iota(replicas.begin(), replicas.end(), 0);
  return replicas;
}

void detail::StepRowsFinder::end_argument(const BatchRows& known) {
  if (rows_.place.step < 0) rows_.place = known.place;
  const std::size_t components = starts_.size();
  const std::size_t tensors = components == 0 ? 0 : (components > 1 ? starts_[1] : seen_.size());
  for (std::size_t i = 0; i < tensors; ++i) {
    const auto rows_on = [&](std::size_t k) {
      const std::size_t end = k + 1 < components ? starts_[k + 1] : seen_.size();
      return starts_[k] + i < end ? seen_[starts_[k] + i] : -1;
    };
    bool has_rows = true;
    std::int64_t sum = 0;
    for (std::size_t k = 0; has_rows && k < components; ++k) {
      has_rows = rows_on(k) >= 0;
      sum += rows_on(k);
    }
    if (!has_rows) continue;
    if (rows_.here.empty()) {
      for (std::size_t k = 0; k < components; ++k) rows_.here.push_back(rows_on(k));
      // What the dataset knew is of no use where the program has changed the batches.
      if (!known.has_empty && known.here == sum) rows_.all = known.all;
      continue;
    }
    std::size_t equal = 0;
    for (std::size_t k = 0; k < components; ++k) equal += rows_on(k) == rows_.here[k] ? 1U : 0U;
    is_ambiguous_ = is_ambiguous_ || (equal > 0 && equal < components);
  }
  seen_.clear();
  starts_.clear();
}

detail::StepRows detail::StepRowsFinder::finish() {
  // Other workers do not see the tensors here: what all of them know counts.
  if (is_ambiguous_ && rows_.all < 0) rows_.here.clear();
  return std::move(rows_);
}

void Strategy::run_on_replicas(const detail::StepRows& rows, FunctionRef<void(std::size_t)> call) {
  detail::require_cross_replica(*this, "run");
  const detail::ContextGuard cross(*this, nullptr, -1);
  const int scopes = detail::sync_on_read_scopes();
  const bool is_inner = detail::runs_on_replicas_of(*this);
  detail::RunWatchers watchers;  // which keeps them alive until the run has ended
  if (!runs_->watchers.empty()) {
    static std::mutex mutex;  // a second thread is refused, but only when the run begins
    const std::lock_guard lock(mutex);
    std::erase_if(runs_->watchers, [&](const auto& each) {
      auto watcher = each.lock();
      if (watcher) watchers.push_back(std::move(watcher));
      return each.expired();
    });
  }
  if (!is_inner && !runs_->are_elsewhere()) {
    for (const auto& watcher : watchers) watcher->prepare();
  }
  bool has_begun = false;  // otherwise it was refused, and another run may be under way
  const auto body = [&](int k, local::Seat* seat) {
    if (k == 0) {  // on the caller's thread
      has_begun = true;
      if (!is_inner) {
        runs_->runner.store(this_thread());
        ++runs_->begun;
      }
    }
    ReplicaContext& replica = replica_context(k);
    const SeatScope seated(replica.seat_, seat);
    // The default strategy has no components for distributed values to stand for.
    const detail::ContextGuard inside(*this, &replica, is_default() ? -1 : k);
    const detail::InheritedSyncOnReadScopes inherited(scopes);
    detail::RunNotes notes(rows, watchers);
    detail::current_context()->notes = &notes;
    for (const auto& watcher : watchers)
      is_inner ? watcher->remember(static_cast<std::size_t>(k)) : watcher->begin(static_cast<std::size_t>(k));
    const auto at = static_cast<std::size_t>(k);
    try {
      call(at);
    } catch (...) {
      if (at < rows.here.size() && rows.here[at] == 0) rethrow_of_empty_batch();
      throw;
    }
    for (const auto& watcher : watchers) watcher->require_untouched(at);
  };
  try {
    run_replicas(body);
    if (!is_inner) runs_->runner.store(nullptr);
    for (const auto& watcher : watchers) {
      if (!is_inner) watcher->end();
    }
  } catch (...) {
    if (has_begun) ++runs_->failed;
    if (has_begun && !is_inner) runs_->runner.store(nullptr);
    throw;
  }
}

void Strategy::raise_failure(const local::ReplicaFailure& failure) {
  const Said said = said_by(failure.error);
  const int replica = replica_context(failure.replica).replica_id_in_sync_group();
  auto& last_failure = runs_->last_failure;
  last_failure = RunFailure{replica, said.text, said.type};
  log_other_failures(*this, said, failure.others);
  if (workers_) workers_->report(str(said.type, " on replica ", replica, ": ", verbatim(said.what)));
  // What is thrown is the caller's to log or not. A merge function's run is not worth a line: its caller is this run's.
  if (is_logged(Severity::Debug) && !detail::runs_on_replicas_of(*this))
    say(Severity::Debug, str("run failed on replica ", replica, ": ", said.type, ": ", verbatim(said.what)));

  const std::string who = in_words_here(str("on replica ", replica));
  try {
    std::rethrow_exception(failure.error);
  } catch (Error& e) {
    // What happened to another worker happened on no replica of this one.
    const auto has = [&](const std::string& part) { return e.text().where.find(part) != std::string::npos; };
    const bool is_of_workers =
        workers_ && e.number() < errors::kWrongContext && (e.number() >= errors::kPeerLost || has("reported by"));
    if (!is_of_workers && !has(in_words_here("replica") + " ")) e.add_where(who);
    last_failure->what = e.what();
    throw;
  } catch (c10::Error& e) {
    e.add_context(who);
    const auto says = [&](const char* part) { return said.what.find(part) != std::string::npos; };
    // Types of a convolution may also differ in their numbers alone.
    const bool are_apart = (says("Input type (CPU") && says("weight type (CUDA")) ||
                           (says("Input type (CUDA") && says("weight type (CPU"));
    if (says("on the same device") || are_apart)
      e.add_context(
          in_words_here("help: move it to the replica's device: x.to(get_replica_context().device()); "
                        "strategy.split(batch) gives each replica its rows there"));
    last_failure->what = e.what_without_backtrace();
    throw;
  }
}

}  // namespace lockstep
