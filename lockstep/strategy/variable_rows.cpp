#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/values/const_data.h"

// Writing rows: how they are checked, how those of all replicas are aggregated, and how they change a component.
namespace lockstep {
namespace {

using detail::Change;
using detail::Write;

bool is_sum_of_rows(const Write& write) { return write.change == Change::Add || write.change == Change::Sub; }

void require_rows_in(const Variable::Impl& variable, const Write& write, const IndexedSlices& rows) {
  check_indexed_slices(rows, lockstep::str(write.name, " of variable '", variable.options().name, "'"));
  const at::Tensor& component = variable.values()[0];
  const auto fail = [&](int number, std::string what) {
    throw InvalidArgument(
        number,
        {.what = std::move(what),
         .where = lockstep::str(write.name, " of variable '", variable.options().name, "'"),
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
bool is_applied_once(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                     const PerReplica<IndexedSlices>& all, bool one_object) {
  if (!is_sum_of_rows(write) && strategy.num_workers() == 1) return one_object;
  if (!have_equal_rows(strategy, all)) return false;
  if (is_sum_of_rows(write)) return true;
  throw Unimplemented(
      errors::kVariableAssign,
      {.what = lockstep::str(write.name, " with Aggregation::Mean of the same rows on all replicas of several workers"),
       .where = lockstep::str("variable '", variable.options().name, "'"),
       .help = "create the variable with Aggregation::OnlyFirstReplica, or call it outside run"});
}

}  // namespace

void detail::require_rows_writable(const Variable::Impl& variable, const Write& write) {
  const std::string where = lockstep::str("variable '", variable.options().name, "'");
  if (variable.is_sync_on_read()) {
    throw Unimplemented(errors::kVariableAssign,
                        {.what = lockstep::str(write.name, " is not possible for an OnRead variable"),
                         .where = where,
                         .help = "inside run, change the replica's own component: variable.handle()"});
  }
  // Rows of all replicas can be added one after the other, but a minimum or a new value of a sum has no meaning.
  const bool combines = is_sum_of_rows(write) || write.change == Change::Mul || write.change == Change::Div;
  const Aggregation aggregation = variable.options().aggregation;
  if (combines || aggregation == Aggregation::None || aggregation == Aggregation::OnlyFirstReplica) return;
  throw Unimplemented(
      errors::kVariableAssign,
      {.what = lockstep::str(write.name, " needs Aggregation::None or OnlyFirstReplica, got Aggregation::",
                             aggregation == Aggregation::Sum ? "Sum" : "Mean"),
       .where = where,
       .help = "use scatter_add or scatter_sub, or create the variable with another aggregation"});
}

IndexedSlices detail::given_to(const Variable::Impl& variable, const Write& write, const IndexedSlices& rows,
                               std::size_t) {
  require_rows_in(variable, write, rows);
  IndexedSlices given = rows;
  if (lies_in(rows.values, variable)) given.values = rows.values.clone();
  return given;
}

std::vector<IndexedSlices> detail::given_to_all(const Variable::Impl& variable, const Write& write,
                                                const IndexedSlices& rows) {
  return std::vector<IndexedSlices>(variable.values().size(), given_to(variable, write, rows, 0));
}

// In order, row by row: a row that occurs twice is written twice.
void detail::apply(const Write& write, at::Tensor& component, const IndexedSlices& given) {
  const at::Tensor indices =
      gpu::bring_here(given.indices, component.device()).to(component.device(), at::kLong).contiguous();
  const at::Tensor values = gpu::bring_here(given.values, component.device());
  if (is_sum_of_rows(write)) {
    component.index_add_(0, indices, values, write.change == Change::Add ? 1 : -1);
    return;
  }
  const at::Tensor on_host = indices.cpu();
  const auto* index = const_data<std::int64_t>(on_host);
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    at::Tensor row = component.select(0, index[i]);
    change(write.change, row, values.select(0, i));
  }
}

IndexedSlices detail::aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                                 const PerReplica<IndexedSlices>& all) {
  const Aggregation aggregation = variable.options().aggregation;
  if (aggregation == Aggregation::OnlyFirstReplica) return value_of_first(strategy, all[0]);
  for (const auto& each : all) require_rows_in(variable, write, each);
  bool one_object = all.size() > 1;
  for (const auto& other : all)
    one_object &= other.values.is_same(all[0].values) && other.indices.is_same(all[0].indices);
  if (aggregation == Aggregation::Mean && is_applied_once(strategy, variable, write, all, one_object)) return all[0];
  if (one_object && aggregation == Aggregation::Sum) {
    throw InvalidArgument(
        errors::kNotReducible,
        {.what = lockstep::str("Aggregation::Sum needs rows of each replica's own, but all ", all.size(),
                               " replicas gave the same rows"),
         .where = lockstep::str(write.name, " of variable '", variable.options().name, "'"),
         .help = "pass rows of its own on each replica, or use Aggregation::Mean or OnlyFirstReplica"});
  }
  return strategy.cross_device_ops().reduce_slices(reduce_op_of(aggregation), all, {strategy.devices()[0]},
                                                   strategy.communication())[0];
}

}  // namespace lockstep
