#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/owners_call.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/variable_rules.h"

// Every write to a variable: where it is allowed, how the replicas' values are brought together, and which components get what.
namespace lockstep {

using detail::Change;
using detail::VariableContext;
using detail::Write;

namespace {

using Kind = VariableValue::Kind;

std::string text_of(const Variable::Impl& variable) {
  return lockstep::str("variable '", variable.options().name, "'");
}

/// While it lives, collectives of this thread are those of a write to a variable: workers compare which.
class WritePlace {
 public:
  WritePlace(const Variable::Impl& variable, const char* operation, const VariablePlace* part) {
    if (variable.strategy().num_workers() == 1) return;
    text_ = lockstep::str(operation, " of variable ", variable.number(), " '", variable.options().name, "'");
    if (part != nullptr) text_ += detail::text_of(*part);
    place_.emplace(text_);
  }

 private:
  std::string text_;
  std::optional<detail::CallPlace> place_;  ///< of several workers
};

/// At a merge point: throws unless all replicas came to write to the same part of the same variable in the same way.
void require_same_write(const PerReplica<std::shared_ptr<Variable::Impl>>& variables,
                        const PerReplica<const char*>& operations,
                        const PerReplica<std::shared_ptr<const VariablePlace>>& places) {
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
    if (std::string_view(operations[k]) != operations[0])
      fail(lockstep::str("replicas write to variable '", name, "' in different ways"), operations[0], k, operations[k]);
  }
  for (std::size_t k = 1; k < places.size(); ++k) {
    if (detail::is_same_place(places[0].get(), places[k].get())) continue;
    throw FailedPrecondition(
        errors::kDifferentCollective,
        {.what = "replicas assign to different slices at the same point",
         .where = text_of(*variables[0]),
         .seen = lockstep::str(detail::replica_name(0), " and ", detail::replica_name(k), " gave different indices"),
         .help = "assign to the same slice on every replica, or to the whole variable"});
  }
}

/// In a replica: throws if the strategy is strict and a write could make components of the mirrored variable differ: it has no
/// aggregation, or each of several workers would take its own first replica's value.
void require_aggregation_if_strict(const Variable::Impl& variable) {
  if (variable.is_sync_on_read() || !variable.strategy().strict()) return;
  const Aggregation aggregation = variable.options().aggregation;
  if (aggregation == Aggregation::None) {
    throw InvalidArgument(
        errors::kVariableAssign,
        {.what = "a variable without aggregation cannot be written inside a replica of a strict strategy",
         .where = text_of(variable),
         .help =
             "create it with Aggregation::Sum, Mean or OnlyFirstReplica, or make the strategy with .strict = false"});
  }
  if (aggregation == Aggregation::OnlyFirstReplica && variable.strategy().num_workers() > 1 &&
      !detail::is_client_of_several_workers(variable.strategy())) {
    throw InvalidArgument(
        errors::kVariableAssign,
        {.what =
             "every worker would write its own first replica's value: with OnlyFirstReplica the variable may differ "
             "between workers",
         .where = text_of(variable),
         .help = "create it with Aggregation::Mean, assign strategy.broadcast(value) outside of run, or make the "
                 "strategy with .strict = false if all workers give the same value"});
  }
}

void write_component(const Variable::Impl& variable, std::size_t k, FunctionRef<void(std::size_t, at::Tensor&)> write) {
  const at::NoGradGuard no_grad;
  at::Tensor component = variable.values()[k];
  write(k, component);
}

template <class Value>
void write_own(const Variable::Impl& variable, const Write& write, const Value& value) {
  const std::size_t k = detail::calling_component(variable);
  const auto given = detail::given_to(variable, write, value, k);
  write_component(variable, k, [&](std::size_t, at::Tensor& component) { detail::apply(write, component, given); });
}

/// All values are checked before the first component changes, so that a wrong one leaves the variable as it was.
template <class Value>
void write_all(const Variable::Impl& variable, const Write& write, const Value& value) {
  const auto given = detail::given_to_all(variable, write, value);
  detail::write_components(variable,
                           [&](std::size_t k, at::Tensor& component) { detail::apply(write, component, given[k]); });
}

template <class Value>
void write_in_replica(const std::shared_ptr<Variable::Impl>& variable, const Write& write, const Value& value) {
  require_aggregation_if_strict(*variable);
  if (variable->is_sync_on_read() || variable->options().aggregation == Aggregation::None) {
    if constexpr (std::same_as<Value, VariableValue>) {
      if (detail::is_distributed_value(value))
        detail::throw_assign(*variable, "a distributed value cannot be assigned to one replica's component",
                             "assign this replica's component: value.get()");
    }
    return write_own(*variable, write, value);
  }
  get_replica_context().merge_call(
      [&](Strategy& strategy, const PerReplica<Value>& values,
          const PerReplica<std::shared_ptr<Variable::Impl>>& variables, const PerReplica<const char*>& operations,
          const PerReplica<std::shared_ptr<const VariablePlace>>& places) {
        require_same_write(variables, operations, places);
        const WritePlace place(*variables[0], operations[0], places[0].get());
        write_all(*variables[0], write, detail::aggregated(strategy, *variables[0], write, values));
      },
      value, variable, write.name, write.place);
}

/// This worker's components of a value that is read as their sum over all replicas. What does not divide among integers goes to
/// component 0, so that reading gives back what was written.
PerReplica<at::Tensor> shares_of(const Variable::Impl& variable, const at::Tensor& whole) {
  const Strategy& strategy = variable.strategy();
  const std::size_t here = variable.values().size();
  const auto all = static_cast<std::int64_t>(here) * strategy.num_workers();
  if (!at::isIntegralType(whole.scalar_type(), /*includeBool=*/false))
    return PerReplica<at::Tensor>(std::vector<at::Tensor>(here, divide_sum(whole, all)));
  const at::Tensor share = at::div(whole, all, "trunc");
  std::vector<at::Tensor> shares(here, share);
  if (strategy.is_chief()) shares[0] = whole.sub(share.mul(all - 1));
  return PerReplica<at::Tensor>(std::move(shares));
}

const IndexedSlices& value_across(const Variable::Impl&, const Write&, const IndexedSlices& rows) { return rows; }

/// What the components get of a value that is assigned outside of replicas.
VariableValue value_across(const Variable::Impl& variable, const Write& write, const VariableValue& value) {
  if (!variable.is_sync_on_read()) {
    if (value.kind() == Kind::PerReplica && variable.strategy().strict())
      detail::throw_assign(variable, "the value must be Mirrored: a PerReplica would make the components differ",
                           "reduce it first, or make the strategy with .strict = false");
    return value;
  }
  if (value.kind() == Kind::PerReplica)
    detail::throw_assign(variable, "a PerReplica cannot be assigned to an OnRead variable outside of replicas",
                         "assign inside run, where each replica writes its own component");
  if (write.change != Change::Set) detail::variable_rules(variable.strategy()).require_change_across(variable, write);
  if (variable.options().aggregation != Aggregation::Sum) return value;
  const at::Tensor whole = detail::value_for(variable, write, value, 0);
  detail::require_fitting(variable, detail::target_of(variable, write), whole);
  return shares_of(variable, whole);
}

template <class Value>
at::Tensor write_here(const Variable& handle, const Write& write, const Value& value, ReadBack read_back) {
  const Variable::Impl& variable = *handle.impl();
  const detail::WordsOf words(variable.strategy());
  const VariableContext context = detail::variable_context(variable.strategy(), write.name);
  switch (context) {
    case VariableContext::Replica: write_in_replica(handle.impl(), write, value); break;
    case VariableContext::Update: write_own(variable, write, value); break;
    case VariableContext::CrossReplica:
      detail::require_call_of_all_workers("a variable was written");
      write_all(variable, write, value_across(variable, write, value));
      break;
  }
  if (read_back == ReadBack::No) return {};
  const bool is_across = context == VariableContext::CrossReplica;
  return detail::part_of(is_across ? handle.read() : variable.values()[detail::calling_component(variable)],
                         write.place.get());
}

}  // namespace

void detail::write_components(const Variable::Impl& variable, FunctionRef<void(std::size_t, at::Tensor&)> write) {
  for (std::size_t k = 0; k < variable.values().size(); ++k) write_component(variable, k, write);
}

void detail::change(Change how, at::Tensor& target, const at::Tensor& value) {
  switch (how) {
    case Change::Set: target.copy_(value); return;
    case Change::Add: target.add_(value); return;
    case Change::Sub: target.sub_(value); return;
    case Change::Mul: target.mul_(value); return;
    case Change::Div:
      at::isIntegralType(target.scalar_type(), false) ? target.div_(value, "trunc") : target.div_(value);
      return;
    case Change::Min: target.copy_(target.minimum(value)); return;
    case Change::Max: target.copy_(target.maximum(value)); return;
  }
}

at::Tensor detail::write(const Variable& variable, const Write& write, const VariableValue& value, ReadBack read_back) {
  return write_here(variable, write, value, read_back);
}

at::Tensor detail::write(const Variable& variable, const Write& write, const IndexedSlices& rows, ReadBack read_back) {
  require_rows_writable(*variable.impl(), write);
  return write_here(variable, write, rows, read_back);
}

at::Tensor Variable::assign(const VariableValue& value, ReadBack read_back) {
  return detail::write(*this, {Change::Set, "assign"}, value, read_back);
}
at::Tensor Variable::assign_add(const VariableValue& value, ReadBack read_back) {
  return detail::write(*this, {Change::Add, "assign_add"}, value, read_back);
}
at::Tensor Variable::assign_sub(const VariableValue& value, ReadBack read_back) {
  return detail::write(*this, {Change::Sub, "assign_sub"}, value, read_back);
}

at::Tensor Variable::scatter_add(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Add, "scatter_add"}, rows, read_back);
}
at::Tensor Variable::scatter_sub(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Sub, "scatter_sub"}, rows, read_back);
}
at::Tensor Variable::scatter_mul(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Mul, "scatter_mul"}, rows, read_back);
}
at::Tensor Variable::scatter_div(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Div, "scatter_div"}, rows, read_back);
}
at::Tensor Variable::scatter_min(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Min, "scatter_min"}, rows, read_back);
}
at::Tensor Variable::scatter_max(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Max, "scatter_max"}, rows, read_back);
}
at::Tensor Variable::scatter_update(const IndexedSlices& rows, ReadBack read_back) {
  return detail::write(*this, {Change::Set, "scatter_update"}, rows, read_back);
}

void Variable::load_state(const at::Tensor& state) {
  if (is_distributed()) detail::require_cross_replica(strategy(), "load_state");
  detail::require_defined(*impl_, state);
  const at::Tensor value = state.to(values()[0].device());
  detail::require_fitting(*impl_, values()[0], value);
  const bool is_sum = impl_->is_sync_on_read() && aggregation() == Aggregation::Sum && is_distributed();
  const VariableValue given = is_sum ? VariableValue(shares_of(*impl_, value)) : VariableValue(value);
  write_all(*impl_, Write{Change::Set, "load_state"}, given);
}

}  // namespace lockstep
