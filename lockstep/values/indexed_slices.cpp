#include "lockstep/values/indexed_slices.h"

#include <ATen/ops/zeros.h>

#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/values/print.h"
#include "lockstep/values/write_value.h"

namespace lockstep {

void check_indexed_slices(const IndexedSlices& slices, const std::string& where) {
  const auto fail = [&](int number, std::string what, std::string seen) {
    throw InvalidArgument(number, {.what = std::move(what),
                                   .where = where,
                                   .seen = std::move(seen),
                                   .help = "give IndexedSlices values [n, ...], integer indices [n] and a dense_shape "
                                           "whose trailing dimensions match values"});
  };
  const at::Tensor& values = slices.values;
  const at::Tensor& indices = slices.indices;
  if (!values.defined() || !indices.defined()) fail(errors::kShape, "IndexedSlices must have values and indices", "");
  if (!at::isIntegralType(indices.scalar_type(), /*includeBool=*/false))
    fail(errors::kDtype, "the indices of IndexedSlices must be integers",
         str("indices of dtype ", dtype_name(indices.scalar_type())));
  if (indices.dim() != 1 || values.dim() < 1 || values.size(0) != indices.size(0))
    fail(errors::kShape, "IndexedSlices must have one index per row of values",
         str("values ", shape_repr(values.sizes()), ", indices ", shape_repr(indices.sizes())));
  if (!slices.dense_shape.empty() && at::IntArrayRef(slices.dense_shape).slice(1) != values.sizes().slice(1))
    fail(errors::kShape, "the rows of IndexedSlices do not match dense_shape",
         str("values ", shape_repr(values.sizes()), ", dense_shape ", shape_repr(slices.dense_shape)));
}

at::Tensor IndexedSlices::to_dense() const {
  check_indexed_slices(*this, "to_dense");
  if (dense_shape.empty())
    throw InvalidArgument(errors::kShape, {.what = "IndexedSlices without dense_shape cannot be made dense",
                                           .where = "to_dense",
                                           .help = "set dense_shape to the shape of the whole tensor"});
  return at::zeros(dense_shape, values.options()).index_add_(0, indices, values);
}

std::ostream& operator<<(std::ostream& out, const IndexedSlices& slices) {
  out << "IndexedSlices(indices=";
  write_value(out, slices.indices);
  out << ", values=";
  write_value(out, slices.values);
  if (slices.dense_shape.empty()) return out << ", dense_shape=unknown)";
  return out << ", dense_shape=" << shape_repr(slices.dense_shape) << ')';
}

}  // namespace lockstep
