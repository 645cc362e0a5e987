#include "lockstep/strategy/tensor_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/ordered_sum.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/intra_op.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_dtypes(const at::Tensor& first, const at::Tensor& other, std::size_t k) {
  throw InvalidArgument(errors::kDtype, {.what = lockstep::str("component 0 holds ", first.scalar_type(),
                                                               " and component ", k, " holds ", other.scalar_type()),
                                         .help = "convert them to one type with .to(...)"});
}

[[noreturn]] void throw_shape(std::string what, std::string help) {
  throw InvalidArgument(errors::kShape, {.what = std::move(what), .help = std::move(help)});
}

void require_equal_rows(const at::Tensor& first, const at::Tensor& other, std::size_t k) {
  if (other.sizes().slice(1) != first.sizes().slice(1)) {
    throw_shape(lockstep::str("Shape mismatch: rows of component 0 have shape ", first.sizes().slice(1),
                              ", those of component ", k, " ", other.sizes().slice(1)),
                "reduce rows of one tensor together, and of another tensor in a call of their own");
  }
  if (other.scalar_type() != first.scalar_type()) throw_dtypes(first, other, k);
}

[[noreturn]] void throw_undefined(const char* operation, std::string seen) {
  throw InvalidArgument(errors::kNotReducible, {.what = "an undefined tensor cannot be reduced",
                                                .where = operation,
                                                .seen = std::move(seen),
                                                .help = "pass zeros where a replica has nothing to add"});
}

// Any element type and any device: the same tree by LibTorch's own additions, which round each node to the type.
at::Tensor tree_of_additions(const std::vector<at::Tensor>& components) {
  std::vector<at::Tensor> nodes = components;
  for (const TreeStep& step : plan_reduction_tree(static_cast<int>(nodes.size()))) {
    auto& into = nodes[static_cast<std::size_t>(step.into)];
    into = into.add(nodes[static_cast<std::size_t>(step.from)]);
  }
  return components.size() == 1 ? nodes[0].clone() : nodes[0];
}

at::Tensor engine_sum(Dtype dtype, const std::vector<at::Tensor>& components, std::int64_t divisor) {
  ArraySum sum{.dtype = dtype, .divisor = divisor};
  std::vector<at::Tensor> contiguous;
  for (const auto& component : components) {
    contiguous.push_back(component.contiguous().resolve_neg());
    sum.inputs.push_back(contiguous.back().const_data_ptr());
  }
  at::Tensor out = at::empty(components[0].sizes(),
                             components[0].options().memory_format(at::MemoryFormat::Contiguous).requires_grad(false));
  sum.outputs.push_back(out.data_ptr());
  for_ranges(out.view({-1}), 64 * 1024, [&](std::int64_t begin, std::int64_t end) {
    sum.add(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
  });
  return out;
}

}  // namespace

void ArraySum::add(std::size_t begin, std::size_t end) const {
  const std::size_t offset = begin * size_of(dtype);
  decltype(inputs) from;
  decltype(outputs) to;
  for (const void* const input : inputs) from.push_back(static_cast<const char*>(input) + offset);
  for (void* const output : outputs) to.push_back(static_cast<char*>(output) + offset);
  ordered_sum(dtype, from.data(), static_cast<int>(from.size()), to.data(), static_cast<int>(to.size()), end - begin,
              divisor);
}

std::optional<Dtype> engine_dtype(at::ScalarType type) {
  switch (type) {
    case at::kByte: return Dtype::UInt8;
    case at::kChar: return Dtype::Int8;
    case at::kShort: return Dtype::Int16;
    case at::kInt: return Dtype::Int32;
    case at::kLong: return Dtype::Int64;
    case at::kHalf: return Dtype::Float16;
    case at::kBFloat16: return Dtype::BFloat16;
    case at::kFloat: return Dtype::Float32;
    case at::kDouble: return Dtype::Float64;
    default: return std::nullopt;
  }
}

at::ScalarType mean_type(at::ScalarType type) {
  if (!at::isIntegralType(type, /*includeBool=*/true)) return type;
  return type == at::kInt || type == at::kLong ? at::kDouble : at::kFloat;
}

void require_op(ReduceOp op, const char* operation) {
  if (op == ReduceOp::Sum || op == ReduceOp::Mean) return;
  throw InvalidArgument(errors::kBadOption, {.what = lockstep::str("op must be ReduceOp::Sum or ReduceOp::Mean, got ",
                                                                   static_cast<int>(op)),
                                             .where = operation,
                                             .help = "use ReduceOp::Sum or ReduceOp::Mean"});
}

void require_equal_form(const std::vector<at::Tensor>& components, const char* operation) {
  const at::Tensor& first = components.at(0);
  for (std::size_t k = 1; k < components.size(); ++k) {
    const at::Tensor& other = components[k];
    if (!other.defined()) throw_undefined(operation, lockstep::str("component ", k));
    if (other.sizes() != first.sizes()) {
      throw InvalidArgument(errors::kShape,
                            {.what = "Shape mismatch: components must have equal shapes to be reduced without an axis",
                             .where = operation,
                             .seen = lockstep::str("component 0 has shape ", first.sizes(), ", component ", k,
                                                   " has shape ", other.sizes()),
                             .help = "pass an axis to reduce uneven batches: strategy.reduce(op, value, /*axis=*/0)"});
    }
    const bool can_meet = other.device() == first.device() || are_on_several_devices({first, other});
    if (!can_meet || other.layout() != first.layout()) {
      throw InvalidArgument(
          errors::kDevice, {.what = "components lie on different devices or have different layouts",
                            .where = operation,
                            .seen = lockstep::str("component 0: ", first.device(), ", ", first.layout(), "; component ",
                                                  k, ": ", other.device(), ", ", other.layout()),
                            .help = "bring them to one device and layout with .to(...) or to_dense()"});
    }
    if (other.scalar_type() != first.scalar_type()) {
      throw InvalidArgument(errors::kDtype, {.what = "components have different element types",
                                             .where = operation,
                                             .seen = lockstep::str("component 0 holds ", first.scalar_type(),
                                                                   ", component ", k, " holds ", other.scalar_type()),
                                             .help = "convert them to one type with .to(...)"});
    }
  }
}

bool are_on_several_devices(const std::vector<at::Tensor>& components) {
  const at::Tensor& first = components.at(0);
  const auto can_be_moved = [](const at::Tensor& tensor) { return tensor.is_cpu() || tensor.is_cuda(); };
  return gpu::is_built() && can_be_moved(first) && std::ranges::any_of(components, [&](const at::Tensor& other) {
           return other.device() != first.device() && can_be_moved(other);
         });
}

std::vector<at::Tensor> on_one_device(const std::vector<at::Tensor>& components, at::Device here) {
  std::vector<at::Tensor> together;
  for (const at::Tensor& component : components) together.push_back(gpu::bring_here(component, here));
  return together;
}

void require_summable(const at::Tensor& value, const char* operation) {
  if (!value.defined()) {
    throw_undefined(operation, {});
  }
  if (value.scalar_type() == at::kBool) {
    throw InvalidArgument(
        errors::kDtype,
        {.what = "bool values have no sum", .where = operation, .help = "convert them first: .to(torch::kLong)"});
  }
}

at::Tensor divide_sum(const at::Tensor& sum, std::int64_t count) {
  const at::Tensor floating = sum.to(mean_type(sum.scalar_type()));
  if (floating.is_cpu()) return at::div(floating, static_cast<double>(count));
  // On GPUs LibTorch multiplies by the reciprocal of a plain number, which rounds differently.
  return at::div(floating, at::full({}, static_cast<double>(count), floating.options().layout(at::kStrided)));
}

at::Tensor ordered_reduce(ReduceOp op, const std::vector<at::Tensor>& components) {
  require_op(op, "reduce");
  require_summable(components.at(0), "reduce");
  require_equal_form(components, "reduce");
  const at::NoGradGuard no_grad;
  if (are_on_several_devices(components)) return ordered_reduce(op, on_one_device(components, components[0].device()));
  const auto count = static_cast<std::int64_t>(components.size());
  const at::ScalarType type = components[0].scalar_type();
  const bool floating_mean = op == ReduceOp::Mean && mean_type(type) == type;
  const auto dtype = engine_dtype(type);
  const bool by_engine = dtype && components[0].is_cpu() && components[0].layout() == at::kStrided;
  if (by_engine && floating_mean) return engine_sum(*dtype, components, count);
  const at::Tensor sum = by_engine ? engine_sum(*dtype, components, 1) : tree_of_additions(components);
  return op == ReduceOp::Mean ? divide_sum(sum, count) : sum;
}

IndexedSlices concatenate_slices(ReduceOp op, const std::vector<IndexedSlices>& components) {
  require_op(op, "reduce");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> indices;
  for (std::size_t k = 0; k < components.size(); ++k) {
    const IndexedSlices& component = components[k];
    check_indexed_slices(component, lockstep::str("reduce, component ", k));
    require_equal_rows(components[0].values, component.values, k);
    const at::Device here = components[0].values.device();
    values.push_back(gpu::bring_here(component.values, here));
    indices.push_back(gpu::bring_here(component.indices, here));
  }
  IndexedSlices all{at::cat(values), at::cat(indices), components.at(0).dense_shape};
  if (op == ReduceOp::Mean) all.values = divide_sum(all.values, static_cast<std::int64_t>(components.size()));
  return all;
}

at::Tensor concatenate(const std::vector<at::Tensor>& components, std::int64_t axis) {
  const at::Tensor& first = components.at(0);
  const std::int64_t rank = first.dim();
  for (std::size_t k = 0; k < components.size(); ++k) {
    const at::Tensor& other = components[k];
    if (!other.defined())
      throw_shape(lockstep::str("component ", k, " is an undefined tensor"),
                  "pass a tensor without rows where a replica has nothing to add");
    if (other.dim() == 0)
      throw_shape("scalars cannot be concatenated: every component needs at least one dimension",
                  "call unsqueeze(0) or reshape({1}) on them");
    if (other.dim() != rank) {
      throw_shape(lockstep::str("components must have equal ranks, got shape ", first.sizes(), " of component 0 and ",
                                other.sizes(), " of component ", k),
                  "reshape them, or call unsqueeze");
    }
    if (axis < -rank || axis >= rank) {
      throw_shape(lockstep::str("axis must be in [", -rank, ", ", rank, "), got ", axis),
                  lockstep::str("name a dimension of tensors of rank ", rank));
    }
    if (other.scalar_type() != first.scalar_type()) throw_dtypes(first, other, k);
    const std::int64_t along = axis < 0 ? axis + rank : axis;
    for (std::int64_t d = 0; d < rank; ++d) {
      if (d != along && other.size(d) != first.size(d)) {
        throw_shape(lockstep::str("Shape mismatch: dimension ", d, " of component ", k, " is ", other.size(d),
                                  " but that of component 0 is ", first.size(d)),
                    lockstep::str("make the other dimensions equal: components may differ only along axis ", axis));
      }
    }
  }
  return at::cat(are_on_several_devices(components) ? on_one_device(components, first.device()) : components, axis);
}

at::Tensor sum_along(const at::Tensor& value, const Axis& axis, std::int64_t& elements) {
  require_summable(value, "reduce");
  const std::int64_t rank = value.dim();
  std::set<std::int64_t> seen;
  std::int64_t per_result = 1;
  for (const std::int64_t given : axis.dims()) {
    if (given < -rank || given >= rank) {
      throw_shape(lockstep::str("axis must be in [", -rank, ", ", rank, "), got ", given, " for a value of shape ",
                                value.sizes()),
                  "name a dimension that the value has, or leave the axis out");
    }
    const std::int64_t dim = given < 0 ? given + rank : given;
    if (!seen.insert(dim).second)
      throw_shape(lockstep::str("axis ", given, " is named twice"), "name each dimension once");
    per_result *= value.size(dim);
  }
  elements += per_result;
  return at::sum(value, at::IntArrayRef(axis.dims()), /*keepdim=*/false, value.scalar_type());
}

}  // namespace lockstep
