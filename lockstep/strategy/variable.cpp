#include "lockstep/strategy/variable.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/variable_rules.h"

// Reading: which components are meant. variable_write.cpp writes them.
namespace lockstep {

using detail::VariableContext;

namespace detail {

static thread_local int open_scopes = 0;

int sync_on_read_scopes() { return open_scopes; }
InheritedSyncOnReadScopes::InheritedSyncOnReadScopes(int scopes) : outer_(std::exchange(open_scopes, scopes)) {}
InheritedSyncOnReadScopes::~InheritedSyncOnReadScopes() { open_scopes = outer_; }

VariableContext variable_context(const Strategy& strategy, const char* operation) {
  const ContextEntry* top = current_context();
  if (top == nullptr || top->strategy->is_default()) return VariableContext::CrossReplica;
  if (top->strategy != &strategy) require_current_strategy(strategy, operation);
  if (top->replica != nullptr) return VariableContext::Replica;
  return current_component() >= 0 ? VariableContext::Update : VariableContext::CrossReplica;
}

std::size_t calling_component(const Variable::Impl& variable) {
  const int current = current_component();
  return current >= 0 && static_cast<std::size_t>(current) < variable.values().size()
             ? static_cast<std::size_t>(current)
             : 0;
}

}  // namespace detail

namespace {

[[noreturn]] void throw_no_reduction(const Variable::Impl& variable, const char* what) {
  throw InvalidArgument(errors::kVariableMode,
                        {.what = lockstep::str(what, " needs an aggregation, and the variable has none"),
                         .where = lockstep::str("variable '", variable.options().name, "'"),
                         .help = "create it with Aggregation::Sum, Mean or OnlyFirstReplica, or read values()"});
}

at::Tensor read_first(const Variable::Impl& variable) {
  Strategy& strategy = variable.strategy();
  if (strategy.strict() && strategy.num_workers() > 1 && !detail::is_client_of_several_workers(strategy)) {
    throw InvalidArgument(
        errors::kVariableMode,
        {.what = "every worker would read its own first replica: an OnRead variable with OnlyFirstReplica may differ "
                 "between workers",
         .where = lockstep::str("variable '", variable.options().name, "'"),
         .help =
             "create it with Aggregation::Mean or Sum, call strategy.broadcast(variable.read()) without .strict, or "
             "read values()"});
  }
  return detail::value_of_first(strategy, variable.values()[0]);
}

at::Tensor read_across(const Variable::Impl& variable) {
  if (!variable.is_sync_on_read() || !variable.is_distributed()) return variable.values()[0];
  const Aggregation aggregation = variable.options().aggregation;
  if (aggregation == Aggregation::OnlyFirstReplica) return read_first(variable);
  Strategy& strategy = variable.strategy();
  if (aggregation == Aggregation::None && !detail::variable_rules(strategy).sums_without_aggregation())
    throw_no_reduction(variable, "reading an OnRead variable outside of replicas");
  const std::string read = lockstep::str("read of variable '", variable.options().name, "'");
  const detail::CallPlace place(read);
  return strategy.cross_device_ops().reduce(detail::reduce_op_of(aggregation),
                                            PerReplica<at::Tensor>(variable.values()), {strategy.devices()[0]},
                                            strategy.communication())[0];
}

at::Tensor first_of_replicas(const Variable::Impl& variable, ReplicaContext& replica) {
  const std::vector<at::Tensor>& components = variable.values();
  if (detail::StrategyAccess::device_kinds(replica.strategy()) == DeviceKinds::Cpus || components.size() == 1)
    return components[0];
  // Streams know nothing of each other's work without a meeting, and after it the first replica may write again.
  return replica.merge_call([&](Strategy&) {
    return PerReplica<at::Tensor>::generate(components.size(), [&](std::size_t k) {
      return components[0].to(components[k].device(), /*non_blocking=*/true, /*copy=*/true);
    });
  });
}

at::Tensor synchronised_in_replica(const Variable::Impl& variable) {
  const at::NoGradGuard no_grad;
  auto& replica = get_replica_context();
  switch (variable.options().aggregation) {
    case Aggregation::None: throw_no_reduction(variable, "bringing an OnRead variable together");
    case Aggregation::OnlyFirstReplica: return first_of_replicas(variable, replica);
    case Aggregation::Sum:
    case Aggregation::Mean: break;
  }
  return replica.all_reduce(detail::reduce_op_of(variable.options().aggregation),
                            variable.values()[detail::calling_component(variable)]);
}

}  // namespace

at::Tensor Variable::read() const {
  if (!is_distributed()) return values()[0];
  const detail::WordsOf words(impl_->strategy());
  const auto context = detail::variable_context(impl_->strategy(), "read");
  if (context == VariableContext::CrossReplica) return read_across(*impl_);
  if (context == VariableContext::Replica && impl_->is_sync_on_read() && detail::sync_on_read_scopes() > 0) {
    throw Unimplemented(
        errors::kNotAvailable,
        {.what = "read is not possible inside a SyncOnReadScope",
         .where = lockstep::str("variable '", name(), "'"),
         .help = "use the variable as a tensor there: at::Tensor(variable) brings the components together"});
  }
  return values()[detail::calling_component(*impl_)];
}

Variable::operator at::Tensor() const {
  // A mirrored variable is one value wherever it is used, inside another strategy's scope too.
  const auto* top = detail::current_context();
  const bool elsewhere = top != nullptr && is_distributed() && top->strategy != &impl_->strategy();
  if (elsewhere && !impl_->is_sync_on_read()) return values()[0];
  const bool synchronise = detail::sync_on_read_scopes() > 0 && is_distributed() && impl_->is_sync_on_read() &&
                           detail::variable_context(impl_->strategy(), "read") == VariableContext::Replica;
  return synchronise ? synchronised_in_replica(*impl_) : read();
}

at::Tensor detail::ReadVariables::operator()(const Variable& variable) const { return variable; }

at::Tensor Variable::handle() const {
  if (is_distributed() && in_cross_replica_context() && !in_update()) {
    throw InvalidArgument(errors::kComponent, {.what = "handle() was called outside of replicas and update functions",
                                               .where = lockstep::str("variable '", name(), "'"),
                                               .help = "call it inside run, or use values()"});
  }
  return values()[detail::calling_component(*impl_)];
}

at::Device Variable::device() const { return values()[detail::calling_component(*impl_)].device(); }

at::Tensor Variable::state() const {
  if (is_distributed()) detail::require_cross_replica(impl_->strategy(), "state");
  return read_across(*impl_).detach().clone();
}

SyncOnReadScope::SyncOnReadScope() { ++detail::open_scopes; }
SyncOnReadScope::~SyncOnReadScope() { --detail::open_scopes; }

}  // namespace lockstep
