#include "lockstep/compat/strategy_handle.h"

#include "lockstep/base/error.h"
#include "lockstep/compat/replica_context.h"

namespace lockstep::compat {
namespace {

/// The scope that experimental_set_strategy has opened on this thread.
struct OpenedScope {
  std::optional<Scope> scope;
  lockstep::detail::ContextEntry* entry = nullptr;
};
thread_local OpenedScope opened;

void replace_scope(lockstep::Strategy* strategy) {
  if (lockstep::detail::current_context() != opened.entry) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = "experimental_set_strategy was called inside a scope or a replica function",
                              .where = "experimental_set_strategy",
                              .help = "call it where no strategy.scope() is open; inside of one the strategy is set"});
  }
  opened.scope.reset();
  if (strategy != nullptr) opened.scope.emplace(*strategy);
  opened.entry = lockstep::detail::current_context();
}

}  // namespace

lockstep::ReplicaContext* current_replica() {
  return in_cross_replica_context() ? nullptr : &lockstep::get_replica_context();
}

std::shared_ptr<lockstep::Strategy> make_core(MirroredOptions options) {
  return std::make_shared<lockstep::MirroredStrategy>(std::move(options));
}

std::shared_ptr<lockstep::Strategy> make_core(MultiWorkerOptions options) {
  return std::make_shared<lockstep::MultiWorkerMirroredStrategy>(std::move(options));
}

MultiWorkerOptions multi_worker_options(names::CollectiveCommunication communication,
                                        std::shared_ptr<const ClusterResolver> cluster_resolver) {
  return {.cluster_resolver = std::move(cluster_resolver), .communication = {.implementation = communication}};
}

namespace names {

void experimental_set_strategy(const StrategyHandle& strategy) { replace_scope(&strategy.core()); }
void experimental_set_strategy(std::nullopt_t) { replace_scope(nullptr); }

}  // namespace names
}  // namespace lockstep::compat
