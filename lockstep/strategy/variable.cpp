#include "lockstep/strategy/variable.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/print.h"

// Reading and assigning: which components are meant, and what they get.
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

void write_component(const Variable::Impl& variable, std::size_t k,
                     const std::function<void(std::size_t, at::Tensor&)>& write) {
  const at::NoGradGuard no_grad;
  at::Tensor component = variable.values()[k];
  write(k, component);
}

void write_components(const Variable::Impl& variable, const std::function<void(std::size_t, at::Tensor&)>& write) {
  for (std::size_t k = 0; k < variable.values().size(); ++k) write_component(variable, k, write);
}

bool lies_in(const at::Tensor& tensor, const Variable::Impl& variable) {
  for (const auto& component : variable.values()) {
    if (tensor.is_alias_of(component)) return true;
  }
  return false;
}

void require_same_write(const PerReplica<std::shared_ptr<Variable::Impl>>& variables,
                        const PerReplica<const char*>& operations) {
  const auto fail = [](std::string what, std::string first, std::size_t k, std::string other) {
    throw FailedPrecondition(
        errors::kDifferentCollective,
        {.what = std::move(what),
         .seen = lockstep::str(detail::replica_name(0), ": ", first, ", ", detail::replica_name(k), ": ", other),
         .help = "make the same assignments in the same order on every replica"});
  };
  const std::string& name = variables[0]->options().name;
  for (std::size_t k = 1; k < variables.size(); ++k) {
    const std::string& other = variables[k]->options().name;
    if (variables[k] != variables[0])
      fail("replicas assign to different variables at the same point", lockstep::str("'", name, "'"), k,
           lockstep::str("'", other, "'"));
    if (std::string_view(operations[k]) == operations[0]) continue;
    fail(lockstep::str("replicas write to variable '", name, "' in different ways"), operations[0], k, operations[k]);
  }
}

void require_aggregation_if_strict(const Variable::Impl& variable) {
  if (variable.is_sync_on_read() || !variable.strategy().strict()) return;
  const Aggregation aggregation = variable.options().aggregation;
  const std::string where = lockstep::str("variable '", variable.options().name, "'");
  if (aggregation == Aggregation::None) {
    throw InvalidArgument(
        errors::kVariableAssign,
        {.what = "a variable without aggregation cannot be written inside a replica of a strict strategy",
         .where = where,
         .help =
             "create it with Aggregation::Sum, Mean or OnlyFirstReplica, or make the strategy with .strict = false"});
  }
  if (aggregation == Aggregation::OnlyFirstReplica && variable.strategy().num_workers() > 1 &&
      !StrategyAccess::is_first_of_all(variable.strategy())) {
    throw InvalidArgument(
        errors::kVariableAssign,
        {.what =
             "every worker would write its own first replica's value: with OnlyFirstReplica the variable may differ "
             "between workers",
         .where = where,
         .help = "create it with Aggregation::Mean, assign strategy.broadcast(value) outside of run, or make the "
                 "strategy with .strict = false if all workers give the same value"});
  }
}

const char* Write::name() const {
  switch (kind) {
    case Assign::Set: return place ? "assign to a slice" : "assign";
    case Assign::Add: return place ? "assign_add to a slice" : "assign_add";
    case Assign::Sub: return place ? "assign_sub to a slice" : "assign_sub";
  }
  return "assign";
}

}  // namespace detail

namespace {

using detail::Assign;
using detail::Write;
using Kind = VariableValue::Kind;

[[noreturn]] void throw_assign(const Variable::Impl& variable, std::string what, std::string help) {
  throw InvalidArgument(errors::kVariableAssign, {.what = std::move(what),
                                                  .where = lockstep::str("variable '", variable.options().name, "'"),
                                                  .help = std::move(help)});
}

[[noreturn]] void throw_no_reduction(const Variable::Impl& variable, const char* what) {
  throw InvalidArgument(errors::kVariableMode,
                        {.what = lockstep::str(what, " needs an aggregation, and the variable has none"),
                         .where = lockstep::str("variable '", variable.options().name, "'"),
                         .help = "create it with Aggregation::Sum, Mean or OnlyFirstReplica, or read values()"});
}

at::Tensor literal_tensor(const Variable::Impl& variable, const c10::Scalar& literal) {
  const auto dtype = variable.values()[0].scalar_type();
  const bool to_integer = at::isIntegralType(dtype, /*includeBool=*/true);
  const bool fraction = literal.isFloatingPoint() && literal.toDouble() != std::trunc(literal.toDouble());  // NaN too
  try {
    if (!(to_integer && fraction))
      return at::scalar_tensor(literal, variable.values()[0].options().requires_grad(false));
  } catch (const std::exception&) {  // LibTorch's way to say that the number is out of range
  }
  throw InvalidArgument(
      errors::kDtype,
      {.what = lockstep::str("the number ", literal, " does not fit into a variable of ", dtype_name(dtype)),
       .where = lockstep::str("variable '", variable.options().name, "'"),
       .help = "assign a number that this dtype can hold, or a tensor of this dtype"});
}

/// What a value must look like.
at::Tensor target_of(const Variable::Impl& variable, const Write& write, std::size_t k = 0) {
  const at::Tensor& component = variable.values()[k];
  return write.place ? detail::part_of(component.detach(), write.place.get()) : component;
}

/// One client's variable is on all workers: each of them refuses what one cannot do.
void require_on_all_devices(const Variable::Impl& variable, const Placement& placed) {
  if (!variable.is_distributed() || detail::StrategyAccess::one_client(variable.strategy()) == nullptr) return;
  const std::size_t devices = placed.devices.size();
  const auto all = static_cast<std::size_t>(variable.strategy().num_replicas_in_sync());
  if (devices == 1 || devices == all) return;
  throw InvalidArgument(errors::kComponent,
                        {.what = lockstep::str("a Mirrored on ", devices, " of ", all, " devices cannot be assigned"),
                         .where = lockstep::str("variable '", variable.options().name, "'"),
                         .help = "reduce or broadcast it without naming devices: it is then on all of them"});
}

/// The tensor that component k gets: of a PerReplica its component k, of a Mirrored the one on the same device.
at::Tensor value_for(const Variable::Impl& variable, const Write& write, const VariableValue& value, std::size_t k) {
  if (value.kind() == Kind::Tensor) return value.tensor();
  if (value.kind() == Kind::Number) {
    const at::Tensor number = literal_tensor(variable, value.number());
    return write.place ? number.expand(target_of(variable, write).sizes()) : number;
  }
  if (const Placement* const placed = value.placement()) {
    require_on_all_devices(variable, *placed);
    const std::size_t found = placed->component_of(static_cast<int>(k));
    if (found == value.components().size()) detail::throw_not_placed(*placed, static_cast<int>(k));
    return value.components()[found];
  }
  if (k >= value.components().size()) {
    detail::throw_component_out_of_range(value.kind() == Kind::Mirrored ? "Mirrored" : "PerReplica", k,
                                         value.components().size());
  }
  return value.components()[k];
}

void require_defined(const Variable::Impl& variable, const at::Tensor& value) {
  if (!value.defined())
    throw_assign(variable, "an undefined tensor cannot be assigned", "pass a tensor of the variable's shape");
}

void require_fitting(const Variable::Impl& variable, const at::Tensor& component, const at::Tensor& value) {
  require_defined(variable, value);
  if (value.layout() != component.layout() || value.device() != component.device()) {
    throw InvalidArgument(errors::kDevice,
                          {.what = "device or layout of the value differ from the variable's",
                           .where = lockstep::str("variable '", variable.options().name, "'"),
                           .seen = lockstep::str("variable ", component.device(), ", ", component.layout(), "; value ",
                                                 value.device(), ", ", value.layout()),
                           .help = "convert it with .to(variable.device()) or to_dense()"});
  }
  if (value.sizes() != component.sizes()) {
    throw InvalidArgument(errors::kShape,
                          {.what = "Shape mismatch: the value's shape differs from the variable's",
                           .where = lockstep::str("variable '", variable.options().name, "'"),
                           .seen = lockstep::str("variable ", component.sizes(), ", value ", value.sizes()),
                           .help = "expand or reshape the value"});
  }
  if (value.scalar_type() != component.scalar_type()) {
    throw InvalidArgument(errors::kDtype,
                          {.what = lockstep::str("the value must be ", dtype_name(component.scalar_type()), ", got ",
                                                 dtype_name(value.scalar_type())),
                           .where = lockstep::str("variable '", variable.options().name, "'"),
                           .help = "convert it with .to(variable.dtype())"});
  }
}

/// All values are checked before the first component changes, so that a wrong one leaves the variable as it was.
void apply_to_all(const Variable::Impl& variable, const Write& write,
                  const std::function<at::Tensor(std::size_t)>& value) {
  std::vector<at::Tensor> values;
  for (std::size_t k = 0; k < variable.values().size(); ++k) {
    values.push_back(value(k));
    require_fitting(variable, target_of(variable, write, k), values.back());
    if (detail::lies_in(values.back(), variable)) values.back() = values.back().clone();
  }
  detail::write_components(variable, [&](std::size_t k, at::Tensor& component) {
    detail::write_part(write.kind, component, write.place.get(), values[k]);
  });
}

void apply_to_one(const Variable::Impl& variable, const Write& write, std::size_t k, const VariableValue& value) {
  at::Tensor given = value_for(variable, write, value, k);
  require_fitting(variable, target_of(variable, write, k), given);
  if (write.place && detail::lies_in(given, variable)) given = given.clone();  // two parts may overlap
  detail::write_component(variable, k, [&](std::size_t, at::Tensor& component) {
    detail::write_part(write.kind, component, write.place.get(), given);
  });
}

bool is_distributed_value(const VariableValue& value) {
  return value.kind() == Kind::PerReplica || value.kind() == Kind::Mirrored;
}

bool is_real_number(const VariableValue& value) { return value.kind() == Kind::Number && !value.number().isComplex(); }

bool is_zero(const VariableValue& value) { return is_real_number(value) && value.number().toDouble() == 0.0; }

/// The very same number or tensor on every replica.
bool is_one_object(const PerReplica<VariableValue>& values) {
  const VariableValue& first = values[0];
  for (std::size_t k = 1; k < values.size(); ++k) {
    const VariableValue& other = values[k];
    const bool same_tensor =
        first.kind() == Kind::Tensor && other.kind() == Kind::Tensor && first.tensor().is_same(other.tensor());
    const bool same_number =
        is_real_number(first) && is_real_number(other) && first.number().toDouble() == other.number().toDouble();
    if (!same_tensor && !same_number) return false;
  }
  return !is_distributed_value(first);
}

/// Whether the replicas of all workers gave the one number that those here gave. Its mean is the number itself, wherever the
/// replicas are: adding up and dividing may round. Workers that gave something else must ask, too.
bool is_one_number_everywhere(Strategy& strategy, const PerReplica<VariableValue>& values) {
  const bool one_number = is_real_number(values[0]) && is_one_object(values);
  const std::vector<std::int64_t> mine{one_number,
                                       one_number ? std::bit_cast<std::int64_t>(values[0].number().toDouble()) : 0};
  const auto all = workers::all_gather(*detail::StrategyAccess::workers(strategy), mine, "numbers of a mean",
                                       deadline_of(strategy.communication()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != mine[i % 2]) return false;
  }
  return one_number;
}

ReduceOp reduce_op_of(Aggregation aggregation) {
  return aggregation == Aggregation::Mean ? ReduceOp::Mean : ReduceOp::Sum;
}

/// What every component gets when replicas assign `values` to a mirrored variable, at the merge point.
Mirrored<at::Tensor> aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                                const PerReplica<VariableValue>& values) {
  const Aggregation aggregation = variable.options().aggregation;
  const std::size_t count = variable.values().size();
  const Devices& devices = strategy.devices();
  if (aggregation == Aggregation::OnlyFirstReplica) {
    at::Tensor value = value_for(variable, write, values[0], 0);
    require_fitting(variable, target_of(variable, write), value);
    if (detail::StrategyAccess::is_first_of_all(strategy)) value = strategy.broadcast(value);
    return strategy.cross_device_ops().broadcast(value, devices);
  }
  const bool sum = aggregation == Aggregation::Sum;
  if (values[0].kind() == Kind::Tensor) require_defined(variable, values[0].tensor());
  // Equal numbers or not, the answer must not depend on the data: with SUM a number that is not 0 is refused.
  bool all_zero = true;
  bool any_number = false;
  for (const auto& value : values) {
    all_zero = all_zero && is_zero(value);
    any_number = any_number || value.kind() == Kind::Number;
  }
  const bool several = strategy.num_replicas_in_sync() > 1;
  const bool mirrored = values[0].kind() == Kind::Mirrored;
  const bool one_object = is_one_object(values) && (values.size() > 1 || values[0].kind() == Kind::Number);
  if (sum && several && !all_zero && (any_number || mirrored || one_object)) {
    throw InvalidArgument(
        errors::kNotReducible,
        {.what = lockstep::str("Aggregation::Sum needs a tensor of each replica's own, but the ",
                               strategy.num_replicas_in_sync(), " replicas gave the same object or a number"),
         .where = lockstep::str("variable '", variable.options().name, "'"),
         .help = "assign a tensor of its own on each replica, or use Aggregation::Mean or OnlyFirstReplica"});
  }
  // Which tensors replicas of other workers gave is not known here: they count even if all local ones gave the same.
  const bool one_value =
      strategy.num_workers() == 1 ? one_object : !sum && !mirrored && is_one_number_everywhere(strategy, values);
  if (mirrored || one_value) {
    return Mirrored<at::Tensor>::generate(count,
                                          [&](std::size_t k) { return value_for(variable, write, values[0], k); });
  }
  // A whole PerReplica that the replicas captured is one value, not one of each.
  const bool captured = values[0].kind() == Kind::PerReplica;
  const auto each = [&](std::size_t k) { return value_for(variable, write, values[k], k); };
  const auto components =
      captured ? PerReplica<at::Tensor>(values[0].components()) : PerReplica<at::Tensor>::generate(values.size(), each);
  for (const auto& component : components) require_fitting(variable, target_of(variable, write), component);
  return strategy.cross_device_ops().reduce(reduce_op_of(aggregation), components, devices, strategy.communication());
}

void require_same_place(const Variable::Impl& variable,
                        const PerReplica<std::shared_ptr<const VariablePlace>>& places) {
  for (std::size_t k = 1; k < places.size(); ++k) {
    if (detail::is_same_place(places[0].get(), places[k].get())) continue;
    throw FailedPrecondition(
        errors::kDifferentCollective,
        {.what = "replicas assign to different slices at the same point",
         .where = lockstep::str("variable '", variable.options().name, "'"),
         .seen = lockstep::str(detail::replica_name(0), " and ", detail::replica_name(k), " gave different indices"),
         .help = "assign to the same slice on every replica, or to the whole variable"});
  }
}

void assign_in_replica(const std::shared_ptr<Variable::Impl>& variable, const Write& write,
                       const VariableValue& value) {
  detail::require_aggregation_if_strict(*variable);
  if (variable->is_sync_on_read() || variable->options().aggregation == Aggregation::None) {
    if (is_distributed_value(value)) {
      throw_assign(*variable, "a distributed value cannot be assigned to one replica's component",
                   "assign this replica's component: value.get()");
    }
    return apply_to_one(*variable, write, detail::calling_component(*variable), value);
  }
  get_replica_context().merge_call(
      [&](Strategy& strategy, const PerReplica<VariableValue>& values,
          const PerReplica<std::shared_ptr<Variable::Impl>>& variables, const PerReplica<const char*>& operations,
          const PerReplica<std::shared_ptr<const VariablePlace>>& places) {
        detail::require_same_write(variables, operations);
        require_same_place(*variables[0], places);
        const auto result = aggregated(strategy, *variables[0], write, values);
        apply_to_all(*variables[0], write, [&](std::size_t k) { return result[k]; });
      },
      value, variable, write.name(), write.place);
}

/// A SUM variable that is read as a sum is written as a sum: each component gets its share. What does not divide among
/// integers goes to component 0, so that reading gives back what was written.
std::vector<at::Tensor> shares_of(const at::Tensor& value, std::size_t count) {
  const auto n = static_cast<std::int64_t>(count);
  if (!at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) {
    return std::vector<at::Tensor>(count, divide_sum(value, n));
  }
  const at::Tensor share = at::div(value, n, "trunc");
  std::vector<at::Tensor> shares(count, share);
  shares[0] = value.sub(share.mul(n - 1));
  return shares;
}

/// The shares of this worker's components.
std::vector<at::Tensor> own_shares(const Variable::Impl& variable, const at::Tensor& whole) {
  const Strategy& strategy = variable.strategy();
  const std::size_t here = variable.values().size();
  const auto all = shares_of(whole, static_cast<std::size_t>(strategy.num_workers()) * here);
  const auto first = all.begin() + strategy.worker_id() * std::ssize(variable.values());
  return {first, first + std::ssize(variable.values())};
}

void assign_across(const std::shared_ptr<Variable::Impl>& variable, const Write& write, const VariableValue& value) {
  if (!variable->is_sync_on_read()) {
    if (value.kind() == Kind::PerReplica && variable->strategy().strict()) {
      throw_assign(*variable, "the value must be Mirrored: a PerReplica would make the components differ",
                   "reduce it first, or make the strategy with .strict = false");
    }
    return apply_to_all(*variable, write, [&](std::size_t k) { return value_for(*variable, write, value, k); });
  }
  if (value.kind() == Kind::PerReplica) {
    throw_assign(*variable, "a PerReplica cannot be assigned to an OnRead variable outside of replicas",
                 "assign inside run, where each replica writes its own component");
  }
  if (variable->options().aggregation != Aggregation::Sum) {
    return apply_to_all(*variable, write, [&](std::size_t k) { return value_for(*variable, write, value, k); });
  }
  if (write.kind != Assign::Set) {
    throw_assign(*variable,
                 lockstep::str(write.name(),
                               " is not possible outside of replicas for an OnRead variable with Aggregation::Sum"),
                 write.place ? "call it inside run, or assign the result: variable[i] = variable[i] + value"
                             : "call it inside run, or assign(variable.read() + value)");
  }
  const at::Tensor whole = value_for(*variable, write, value, 0);
  require_fitting(*variable, target_of(*variable, write), whole);
  const auto shares = own_shares(*variable, whole);
  apply_to_all(*variable, write, [&](std::size_t k) { return shares[k]; });
}

at::Tensor read_across(const Variable& handle) {
  const auto& variable = handle.impl();
  if (!variable->is_sync_on_read() || !variable->is_distributed()) return variable->values()[0];
  switch (variable->options().aggregation) {
    case Aggregation::OnlyFirstReplica:
      if (detail::StrategyAccess::is_first_of_all(variable->strategy()))
        return variable->strategy().broadcast(variable->values()[0]);
      if (variable->strategy().strict() && variable->strategy().num_workers() > 1) {
        throw InvalidArgument(
            errors::kVariableMode,
            {.what =
                 "every worker would read its own first replica: an OnRead variable with OnlyFirstReplica may differ "
                 "between workers",
             .where = lockstep::str("variable '", variable->options().name, "'"),
             .help =
                 "create it with Aggregation::Mean or Sum, call strategy.broadcast(variable.read()) without .strict, or "
                 "read values()"});
      }
      return variable->values()[0];
    case Aggregation::None:
      if (detail::StrategyAccess::one_client(variable->strategy()) != nullptr) break;
      throw_no_reduction(*variable, "reading an OnRead variable outside of replicas");
    case Aggregation::Sum:
    case Aggregation::Mean: break;
  }
  Strategy& strategy = variable->strategy();
  const std::string read = lockstep::str("read of variable '", variable->options().name, "'");
  const detail::CallPlace place(read);
  return strategy.cross_device_ops().reduce(reduce_op_of(variable->options().aggregation),
                                            PerReplica<at::Tensor>(variable->values()), {strategy.devices()[0]},
                                            strategy.communication())[0];
}

at::Tensor synchronised_in_replica(const Variable::Impl& variable) {
  const at::NoGradGuard no_grad;
  auto& replica = get_replica_context();
  switch (variable.options().aggregation) {
    case Aggregation::None: throw_no_reduction(variable, "bringing an OnRead variable together");
    case Aggregation::OnlyFirstReplica: return variable.values()[0];
    case Aggregation::Sum:
    case Aggregation::Mean: break;
  }
  return replica.all_reduce(reduce_op_of(variable.options().aggregation),
                            variable.values()[detail::calling_component(variable)]);
}

at::Tensor assign_here(const Variable& handle, const Write& write, const VariableValue& value, ReadBack read_back) {
  const VariableContext context = detail::write_here(handle.impl(), write, value);
  return read_back == ReadBack::Yes ? detail::read_back_of(handle, context) : at::Tensor();
}

}  // namespace

VariableContext detail::write_here(const std::shared_ptr<Variable::Impl>& variable, const Write& write,
                                   const VariableValue& value) {
  const VariableContext context = variable_context(variable->strategy(), write.name());
  switch (context) {
    case VariableContext::Replica: assign_in_replica(variable, write, value); break;
    case VariableContext::Update: apply_to_one(*variable, write, calling_component(*variable), value); break;
    case VariableContext::CrossReplica: assign_across(variable, write, value); break;
  }
  return context;
}

at::Tensor detail::read_back_of(const Variable& variable, VariableContext context) {
  if (context == VariableContext::CrossReplica) return variable.read();
  return variable.values()[calling_component(*variable.impl())];
}

VariableValue::VariableValue(const Variable& variable) : kind_(Kind::Tensor), tensor_(variable) {}
VariableValue::VariableValue(const VariableSlice& slice) : kind_(Kind::Tensor), tensor_(slice) {}
VariableValue::VariableValue(PerReplica<at::Tensor> value)
    : kind_(Kind::PerReplica), components_(std::move(value).values()) {}
VariableValue::VariableValue(Mirrored<at::Tensor> value) : kind_(Kind::Mirrored), placement_(value.placement()) {
  components_ = std::move(value).values();
}

at::Tensor Variable::read() const {
  if (!is_distributed()) return values()[0];
  const auto context = detail::variable_context(impl_->strategy(), "read");
  if (context == VariableContext::CrossReplica) return read_across(*this);
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

at::Tensor Variable::assign(const VariableValue& value, ReadBack read_back) {
  return assign_here(*this, {Assign::Set}, value, read_back);
}
at::Tensor Variable::assign_add(const VariableValue& value, ReadBack read_back) {
  return assign_here(*this, {Assign::Add}, value, read_back);
}
at::Tensor Variable::assign_sub(const VariableValue& value, ReadBack read_back) {
  return assign_here(*this, {Assign::Sub}, value, read_back);
}

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
  return read_across(*this).detach().clone();
}

void Variable::load_state(const at::Tensor& state) {
  if (is_distributed()) detail::require_cross_replica(strategy(), "load_state");
  require_defined(*impl_, state);
  const at::Tensor value = state.to(values()[0].device());
  require_fitting(*impl_, values()[0], value);
  if (impl_->is_sync_on_read() && aggregation() == Aggregation::Sum && is_distributed()) {
    const auto shares = own_shares(*impl_, value);
    return apply_to_all(*impl_, {Assign::Set}, [&](std::size_t k) { return shares[k]; });
  }
  apply_to_all(*impl_, {Assign::Set}, [&](std::size_t) { return value; });
}

SyncOnReadScope::SyncOnReadScope() { ++detail::open_scopes; }
SyncOnReadScope::~SyncOnReadScope() { --detail::open_scopes; }

}  // namespace lockstep
