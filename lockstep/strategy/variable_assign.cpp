#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/one_client.h"
#include "lockstep/strategy/owners_call.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable_impl.h"

// Assigning: which components are written, and with which part of the value.
namespace lockstep {

using detail::VariableContext;

namespace detail {

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
      !is_client_of_several_workers(variable.strategy())) {
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
using detail::require_fitting;
using detail::target_of;
using detail::throw_assign;
using detail::value_for;
using detail::Write;
using Kind = VariableValue::Kind;

/// All values are checked before the first component changes, so that a wrong one leaves the variable as it was.
void apply_to_all(const Variable::Impl& variable, const Write& write,
                  const std::function<at::Tensor(std::size_t)>& value) {
  std::vector<at::Tensor> values;
  for (std::size_t k = 0; k < variable.values().size(); ++k) {
    const at::Tensor target = target_of(variable, write, k);
    values.push_back(detail::brought_to(variable, value(k), target.device()));
    require_fitting(variable, target, values.back());
    if (detail::lies_in(values.back(), variable)) values.back() = values.back().clone();
  }
  detail::write_components(variable, [&](std::size_t k, at::Tensor& component) {
    detail::write_part(write.kind, component, write.place.get(), values[k]);
  });
}

void apply_to_one(const Variable::Impl& variable, const Write& write, std::size_t k, const VariableValue& value) {
  const at::Tensor target = target_of(variable, write, k);
  at::Tensor given = detail::brought_to(variable, value_for(variable, write, value, k), target.device());
  require_fitting(variable, target, given);
  if (write.place && detail::lies_in(given, variable)) given = given.clone();  // two parts may overlap
  detail::write_component(variable, k, [&](std::size_t, at::Tensor& component) {
    detail::write_part(write.kind, component, write.place.get(), given);
  });
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
    if (detail::is_distributed_value(value)) {
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
        const detail::WritePlace place(*variables[0], operations[0], places[0].get());
        const auto result = detail::aggregated(strategy, *variables[0], write, values);
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
  detail::require_call_of_all_workers("a variable was written");
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
  if (write.kind != Assign::Set && detail::one_client(variable->strategy()) != nullptr) {
    // As in TensorFlow 1.11, whose client would add to every tower's component what is meant for their sum or mean.
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = lockstep::str(write.name(), " of an OnRead variable belongs inside replicas"),
                              .where = lockstep::str("variable '", variable->options().name, "'"),
                              .help = lockstep::str("call ", write.name(), " inside run, or assign outside of it")});
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

at::Tensor assign_here(const Variable& handle, const Write& write, const VariableValue& value, ReadBack read_back) {
  const VariableContext context = detail::write_here(handle.impl(), write, value);
  return read_back == ReadBack::Yes ? detail::read_back_of(handle, context) : at::Tensor();
}

}  // namespace

VariableContext detail::write_here(const std::shared_ptr<Variable::Impl>& variable, const Write& write,
                                   const VariableValue& value) {
  const WordsOf words(variable->strategy());
  const VariableContext context = variable_context(variable->strategy(), write.name());
  switch (context) {
    case VariableContext::Replica: assign_in_replica(variable, write, value); break;
    case VariableContext::Update: apply_to_one(*variable, write, calling_component(*variable), value); break;
    case VariableContext::CrossReplica: assign_across(variable, write, value); break;
  }
  return context;
}

at::Tensor Variable::assign(const VariableValue& value, ReadBack read_back) {
  return assign_here(*this, {Assign::Set}, value, read_back);
}
at::Tensor Variable::assign_add(const VariableValue& value, ReadBack read_back) {
  return assign_here(*this, {Assign::Add}, value, read_back);
}
at::Tensor Variable::assign_sub(const VariableValue& value, ReadBack read_back) {
  return assign_here(*this, {Assign::Sub}, value, read_back);
}

void Variable::load_state(const at::Tensor& state) {
  if (is_distributed()) detail::require_cross_replica(strategy(), "load_state");
  detail::require_defined(*impl_, state);
  const at::Tensor value = state.to(values()[0].device());
  require_fitting(*impl_, values()[0], value);
  if (impl_->is_sync_on_read() && aggregation() == Aggregation::Sum && is_distributed()) {
    const auto shares = own_shares(*impl_, value);
    return apply_to_all(*impl_, {Assign::Set}, [&](std::size_t k) { return shares[k]; });
  }
  apply_to_all(*impl_, {Assign::Set}, [&](std::size_t) { return value; });
}

}  // namespace lockstep
