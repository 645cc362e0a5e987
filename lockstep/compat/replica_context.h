#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/compat/arguments.h"
#include "lockstep/compat/names.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::compat {

/// The calling replica, or None. `Handle` is the strategy passed to merge functions: v1::Strategy or v2::Strategy.
///
///     if (auto replica = get_replica_context()) replica.all_reduce("mean", loss);
template <class Handle>
class ReplicaContextOf {
 public:
  explicit ReplicaContextOf(lockstep::ReplicaContext* core) : core_(core) {}

  explicit operator bool() const { return core_ != nullptr; }
  friend bool operator==(const ReplicaContextOf& context, std::nullopt_t) { return !context; }

  /// Lockstep's own; FailedPrecondition if this is None.
  lockstep::ReplicaContext& core() const { return core_ ? *core_ : lockstep::get_replica_context(); }

  /// As `lockstep::ReplicaContext` has them.
  int replica_id_in_sync_group() const { return core().replica_id_in_sync_group(); }
  int num_replicas_in_sync() const { return core().num_replicas_in_sync(); }
  Handle strategy() const { return Handle(core().strategy()); }
  std::vector<std::string> devices() const { return {core().device_name()}; }

  /// Reduces a value over all replicas, as `lockstep::ReplicaContext` does.
  template <class T>
  auto all_reduce(names::ReduceOp op, const T& value, const CommunicationOptions& options = {},
                  const std::source_location& where = std::source_location::current()) const {
    return core().all_reduce(op, value, options, where);
  }
  /// Concatenates the replicas' values along `axis`.
  template <class T>
  auto all_gather(const T& value, std::int64_t axis, const CommunicationOptions& options = {},
                  const std::source_location& where = std::source_location::current()) const {
    return core().all_gather(value, axis, options, where);
  }

  /// Calls `merge_fn(strategy, args..., kwargs)` once for all replicas; each argument is a PerReplica there.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t>
  auto merge_call(F&& merge_fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt) const {
    const auto call = [&]<class... Each>(const Each&... each) {
      return core().merge_call([&](lockstep::Strategy& strategy,
                                   const PerReplica<Each>&... parts) { return merge_fn(Handle(strategy), parts...); },
                               each...);
    };
    return call_with(call, args, kwargs);
  }

 private:
  lockstep::ReplicaContext* core_;
};

/// Null in a cross-replica context.
LOCKSTEP_EXPORT lockstep::ReplicaContext* current_replica();

namespace names {
using lockstep::has_strategy;
using lockstep::in_cross_replica_context;
}  // namespace names

}  // namespace lockstep::compat
