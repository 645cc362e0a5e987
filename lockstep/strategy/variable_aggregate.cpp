#include <bit>
#include <cstdint>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/worker_collectives.h"

// How the values that the replicas give become one.
namespace lockstep {
namespace {

using Kind = VariableValue::Kind;

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
  return !detail::is_distributed_value(first);
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

}  // namespace

detail::WritePlace::WritePlace(const Variable::Impl& variable, const char* operation, const VariablePlace* part) {
  if (variable.strategy().num_workers() == 1) return;
  text_ = lockstep::str(operation, " of variable ", variable.number(), " '", variable.options().name, "'");
  if (part != nullptr) text_ += text_of(*part);
  place_.emplace(text_);
}

bool detail::is_distributed_value(const VariableValue& value) {
  return value.kind() == VariableValue::Kind::PerReplica || value.kind() == VariableValue::Kind::Mirrored;
}

ReduceOp detail::reduce_op_of(Aggregation aggregation) {
  return aggregation == Aggregation::Mean ? ReduceOp::Mean : ReduceOp::Sum;
}

Mirrored<at::Tensor> detail::aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
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
  const auto each = [&](std::size_t k) {
    return gpu::bring_here(value_for(variable, write, values[k], k), target_of(variable, write, k).device());
  };
  const auto components =
      captured ? PerReplica<at::Tensor>(values[0].components()) : PerReplica<at::Tensor>::generate(values.size(), each);
  for (std::size_t k = 0; k < components.size(); ++k)
    require_fitting(variable, target_of(variable, write, k < count ? k : 0), components[k]);
  return strategy.cross_device_ops().reduce(reduce_op_of(aggregation), components, devices, strategy.communication());
}

}  // namespace lockstep
