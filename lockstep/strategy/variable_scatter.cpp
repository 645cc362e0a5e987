#include <ATen/core/grad_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/one_client.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/values/const_data.h"

// Writes that touch some rows of a variable.
namespace lockstep {
namespace {

using detail::VariableContext;

enum class Scatter { Add, Sub, Mul, Div, Min, Max, Update };

const char* name_of(Scatter kind) {
  switch (kind) {
    case Scatter::Add: return "scatter_add";
    case Scatter::Sub: return "scatter_sub";
    case Scatter::Mul: return "scatter_mul";
    case Scatter::Div: return "scatter_div";
    case Scatter::Min: return "scatter_min";
    case Scatter::Max: return "scatter_max";
    case Scatter::Update: return "scatter_update";
  }
  return "scatter";
}

/// Rows of all replicas can be added one after the other, but a minimum or a new value of a sum has no meaning.
bool combines_with_sum(Scatter kind) {
  return kind == Scatter::Add || kind == Scatter::Sub || kind == Scatter::Mul || kind == Scatter::Div;
}

void require_rows_in(const Variable::Impl& variable, Scatter kind, const IndexedSlices& rows) {
  check_indexed_slices(rows, lockstep::str(name_of(kind), " of variable '", variable.options().name, "'"));
  const at::Tensor& component = variable.values()[0];
  const auto fail = [&](int number, std::string what) {
    throw InvalidArgument(
        number,
        {.what = std::move(what),
         .where = lockstep::str(name_of(kind), " of variable '", variable.options().name, "'"),
         .help =
             "pass IndexedSlices whose rows have the shape and dtype of the variable's, and indices of rows that it has"});
  };
  if (component.dim() == 0) fail(errors::kShape, "a scalar variable has no rows");
  if (rows.values.scalar_type() != component.scalar_type()) {
    fail(errors::kDtype,
         lockstep::str("the rows hold ", rows.values.scalar_type(), ", the variable ", component.scalar_type()));
  }
  if (rows.values.sizes().slice(1) != component.sizes().slice(1)) {
    fail(errors::kShape, lockstep::str("Shape mismatch: rows of shape ", rows.values.sizes().slice(1),
                                       " in a variable of shape ", component.sizes()));
  }
  const at::Tensor indices = rows.indices.cpu().to(at::kLong).contiguous();
  const auto* index = const_data<std::int64_t>(indices);
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    if (index[i] < 0 || index[i] >= component.size(0)) {
      fail(errors::kShape, lockstep::str("indices[", i, "] = ", index[i], " is not in [0, ", component.size(0), ")"));
    }
  }
}

IndexedSlices apart_from(const Variable::Impl& variable, const IndexedSlices& rows) {
  IndexedSlices apart = rows;
  if (detail::lies_in(rows.values, variable)) apart.values = rows.values.clone();
  return apart;
}

// In order, row by row: a row that occurs twice is written twice.
void apply(Scatter kind, at::Tensor& component, const IndexedSlices& rows) {
  const at::Tensor indices =
      gpu::bring_here(rows.indices, component.device()).to(component.device(), at::kLong).contiguous();
  const at::Tensor values = gpu::bring_here(rows.values, component.device());
  if (kind == Scatter::Add || kind == Scatter::Sub) {
    component.index_add_(0, indices, values, kind == Scatter::Add ? 1 : -1);
    return;
  }
  const at::Tensor on_host = indices.cpu();
  const auto* index = const_data<std::int64_t>(on_host);
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    at::Tensor row = component.select(0, index[i]);
    const at::Tensor value = values.select(0, i);
    switch (kind) {
      case Scatter::Mul: row.mul_(value); break;
      case Scatter::Div:
        at::isIntegralType(row.scalar_type(), false) ? row.div_(value, "trunc") : row.div_(value);
        break;
      case Scatter::Min: row.copy_(row.minimum(value)); break;
      case Scatter::Max: row.copy_(row.maximum(value)); break;
      case Scatter::Update: row.copy_(value); break;
      case Scatter::Add:
      case Scatter::Sub: break;
    }
  }
}

bool have_equal_rows(Strategy& strategy, const PerReplica<IndexedSlices>& all) {
  std::vector<at::Tensor> indices, values;
  for (const IndexedSlices& rows : all) {
    indices.push_back(rows.indices);
    values.push_back(rows.values);
  }
  return detail::is_one_value_everywhere(strategy, {indices, values});
}

/// Whether the mean of what the replicas of all workers gave is the first one's rows: they gave the same. Else each replica's part
/// is applied by itself. To add or subtract that is the same but for rounding; a factor of all is another than the product of its
/// parts. Whether replicas gave one object then decides, and that is not known of other workers.
bool is_applied_once(Strategy& strategy, const Variable::Impl& variable, Scatter kind,
                     const PerReplica<IndexedSlices>& all, bool one_object) {
  const bool is_sum = kind == Scatter::Add || kind == Scatter::Sub;
  if (!is_sum && strategy.num_workers() == 1) return one_object;
  if (!have_equal_rows(strategy, all)) return false;
  if (is_sum) return true;
  throw Unimplemented(
      errors::kVariableAssign,
      {.what =
           lockstep::str(name_of(kind), " with Aggregation::Mean of the same rows on all replicas of several workers"),
       .where = lockstep::str("variable '", variable.options().name, "'"),
       .help = "create the variable with Aggregation::OnlyFirstReplica, or call it outside run"});
}

void scatter_in_replica(const std::shared_ptr<Variable::Impl>& variable, Scatter kind, const IndexedSlices& rows) {
  const auto write_all = [kind](const Variable::Impl& target, const IndexedSlices& all) {
    require_rows_in(target, kind, all);
    const IndexedSlices given = apart_from(target, all);
    detail::write_components(target, [&](std::size_t, at::Tensor& component) { apply(kind, component, given); });
  };
  const Aggregation aggregation = variable->options().aggregation;
  detail::require_aggregation_if_strict(*variable);
  if (aggregation == Aggregation::None) {
    require_rows_in(*variable, kind, rows);
    return detail::write_component(*variable, detail::calling_component(*variable),
                                   [&](std::size_t, at::Tensor& component) { apply(kind, component, rows); });
  }
  get_replica_context().merge_call(
      [&](Strategy& strategy, const PerReplica<IndexedSlices>& all,
          const PerReplica<std::shared_ptr<Variable::Impl>>& variables, const PerReplica<const char*>& operations) {
        detail::require_same_write(variables, operations);
        const detail::WritePlace place(*variables[0], operations[0]);
        if (aggregation == Aggregation::OnlyFirstReplica) {
          const bool of_all = detail::is_client_of_several_workers(strategy);
          return write_all(*variable, of_all ? strategy.broadcast(all[0]) : all[0]);
        }
        for (const auto& each : all) require_rows_in(*variable, kind, each);
        bool one_object = all.size() > 1;
        for (const auto& other : all)
          one_object &= other.values.is_same(all[0].values) && other.indices.is_same(all[0].indices);
        if (aggregation == Aggregation::Mean && is_applied_once(strategy, *variable, kind, all, one_object))
          return write_all(*variable, all[0]);
        if (one_object && aggregation == Aggregation::Sum) {
          throw InvalidArgument(
              errors::kNotReducible,
              {.what = lockstep::str("Aggregation::Sum needs rows of each replica's own, but all ", all.size(),
                                     " replicas gave the same rows"),
               .where = lockstep::str(name_of(kind), " of variable '", variable->options().name, "'"),
               .help = "pass rows of its own on each replica, or use Aggregation::Mean or OnlyFirstReplica"});
        }
        const ReduceOp op = aggregation == Aggregation::Sum ? ReduceOp::Sum : ReduceOp::Mean;
        write_all(*variable, strategy.cross_device_ops().reduce_slices(op, all, {strategy.devices()[0]},
                                                                       strategy.communication())[0]);
      },
      rows, variable, name_of(kind));
}

at::Tensor scatter_here(const Variable& handle, Scatter kind, const IndexedSlices& rows, ReadBack read_back) {
  const auto& variable = handle.impl();
  if (variable->is_sync_on_read()) {
    throw Unimplemented(errors::kVariableAssign,
                        {.what = lockstep::str(name_of(kind), " is not possible for an OnRead variable"),
                         .where = lockstep::str("variable '", variable->options().name, "'"),
                         .help = "inside run, change the replica's own component: variable.handle()"});
  }
  const Aggregation aggregation = variable->options().aggregation;
  if (!combines_with_sum(kind) && (aggregation == Aggregation::Sum || aggregation == Aggregation::Mean)) {
    throw Unimplemented(
        errors::kVariableAssign,
        {.what = lockstep::str(name_of(kind), " needs Aggregation::None or OnlyFirstReplica, got Aggregation::",
                               aggregation == Aggregation::Sum ? "Sum" : "Mean"),
         .where = lockstep::str("variable '", variable->options().name, "'"),
         .help = "use scatter_add or scatter_sub, or create the variable with another aggregation"});
  }
  const detail::WordsOf words(variable->strategy());
  switch (detail::variable_context(variable->strategy(), name_of(kind))) {
    case VariableContext::Replica: scatter_in_replica(variable, kind, rows); break;
    case VariableContext::Update:
      require_rows_in(*variable, kind, rows);
      detail::write_component(*variable, detail::calling_component(*variable),
                              [&](std::size_t, at::Tensor& component) { apply(kind, component, rows); });
      break;
    case VariableContext::CrossReplica: {
      require_rows_in(*variable, kind, rows);
      const IndexedSlices given = apart_from(*variable, rows);
      detail::write_components(*variable, [&](std::size_t, at::Tensor& component) { apply(kind, component, given); });
      break;
    }
  }
  return read_back == ReadBack::Yes ? handle.read() : at::Tensor();
}

}  // namespace

at::Tensor Variable::scatter_add(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Add, rows, read_back);
}
at::Tensor Variable::scatter_sub(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Sub, rows, read_back);
}
at::Tensor Variable::scatter_mul(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Mul, rows, read_back);
}
at::Tensor Variable::scatter_div(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Div, rows, read_back);
}
at::Tensor Variable::scatter_min(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Min, rows, read_back);
}
at::Tensor Variable::scatter_max(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Max, rows, read_back);
}
at::Tensor Variable::scatter_update(const IndexedSlices& rows, ReadBack read_back) {
  return scatter_here(*this, Scatter::Update, rows, read_back);
}

}  // namespace lockstep
