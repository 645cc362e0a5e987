#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"

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

/// The memory of a tensor, element by element in the order of its indices.
at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.detach().contiguous().reshape({-1}).view(at::kByte); }

bool have_one_form(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

/// A bool where the first tensor is, so that asking does not wait for a GPU.
at::Tensor have_equal_bits(const std::vector<at::Tensor>& tensors) {
  at::Tensor all_equal = at::ones({}, tensors[0].options().dtype(at::kBool));
  for (const at::Tensor& other : tensors) {
    if (other.is_same(tensors[0])) continue;
    if (!have_one_form(other, tensors[0])) return at::zeros_like(all_equal);
    const at::Tensor here = gpu::bring_here(other, tensors[0].device());
    all_equal = all_equal.logical_and(bytes_of(here).eq(bytes_of(tensors[0])).all());
  }
  return all_equal;
}

std::uint64_t digest_of(const at::Tensor& tensor) {
  const auto shape = fnv1a(std::span(tensor.sizes().data(), tensor.sizes().size()));
  const at::Tensor bytes = bytes_of(tensor).cpu();
  return fnv1a(std::span(const_data<std::uint8_t>(bytes), static_cast<std::size_t>(bytes.numel())), shape);
}

}  // namespace

bool detail::is_one_value_everywhere(Strategy& strategy, const std::vector<std::vector<at::Tensor>>& tensors) {
  bool is_one = true;
  std::uint64_t digest = 0;
  for (const auto& of_replicas : tensors) is_one = is_one && have_equal_bits(of_replicas).item<bool>();
  if (strategy.num_workers() == 1) return is_one;
  for (const auto& of_replicas : tensors) digest = digest * 31 + (is_one ? digest_of(of_replicas[0]) : 0);
  const std::vector<std::int64_t> mine{is_one, static_cast<std::int64_t>(digest)};
  const auto all = workers::all_gather(*StrategyAccess::workers(strategy), mine, "values of a mean",
                                       deadline_of(strategy.communication()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != mine[i % 2]) return false;
  }
  return is_one;
}

bool detail::is_distributed_value(const VariableValue& value) {
  return value.kind() == VariableValue::Kind::PerReplica || value.kind() == VariableValue::Kind::Mirrored;
}

ReduceOp detail::reduce_op_of(Aggregation aggregation) {
  return aggregation == Aggregation::Mean ? ReduceOp::Mean : ReduceOp::Sum;
}

VariableValue detail::aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                                 const PerReplica<VariableValue>& values) {
  const Aggregation aggregation = variable.options().aggregation;
  const std::size_t count = variable.values().size();
  const Devices& devices = strategy.devices();
  if (aggregation == Aggregation::OnlyFirstReplica) {
    const at::Tensor value = value_for(variable, write, values[0], 0);
    require_fitting(variable, target_of(variable, write), value);
    return strategy.cross_device_ops().broadcast(value_of_first(strategy, value), devices);
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
  if (mirrored || (one_object && strategy.num_workers() == 1)) return values[0];
  // A whole PerReplica that the replicas captured is one value, not one of each.
  const bool captured = values[0].kind() == Kind::PerReplica;
  const auto each = [&](std::size_t k) {
    return brought_to(variable, value_for(variable, write, values[k], k), target_of(variable, write, k).device());
  };
  const auto components =
      captured ? PerReplica<at::Tensor>(values[0].components()) : PerReplica<at::Tensor>::generate(values.size(), each);
  for (std::size_t k = 0; k < components.size(); ++k)
    require_fitting(variable, target_of(variable, write, k < count ? k : 0), components[k]);
  // The mean of equal values is that value, wherever the replicas are: adding up and dividing may round.
  const at::NoGradGuard no_grad;
  const bool on_workers = strategy.num_workers() > 1;
  if (!sum && on_workers && is_one_value_everywhere(strategy, {{components.begin(), components.end()}}))
    return components;
  auto reduced =
      strategy.cross_device_ops().reduce(reduce_op_of(aggregation), components, devices, strategy.communication());
  if (sum || on_workers || !several) return reduced;
  const at::Tensor is_one_value = have_equal_bits({components.begin(), components.end()});
  return Mirrored<at::Tensor>::generate(reduced.size(), [&](std::size_t k) {
    return at::where(gpu::bring_here(is_one_value, reduced[k].device()), components[k], reduced[k]);
  });
}

}  // namespace lockstep
