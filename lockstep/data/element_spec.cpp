#include "lockstep/data/element_spec.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/values/print.h"

namespace lockstep::data {
namespace {

bool can_be_one(const ComponentSpec& a, const ComponentSpec& b) {
  if (a.kind == ComponentSpec::Kind::Unknown || b.kind == ComponentSpec::Kind::Unknown) return true;
  if (a.kind != b.kind || (a.dtype && b.dtype && a.dtype != b.dtype)) return false;
  return !a.shape.has_rank() || !b.shape.has_rank() || a.shape.rank() == b.shape.rank();
}

/// The first known number of rows, if all known ones agree.
std::int64_t common_rows(const ElementSpec& spec) {
  std::int64_t rows = PartialShape::kUnknown;
  if (!spec.components) return rows;
  for (const ComponentSpec& component : *spec.components) {
    const std::int64_t mine = component.shape.rows();
    if (mine == PartialShape::kUnknown) continue;
    if (rows != PartialShape::kUnknown && rows != mine) return PartialShape::kUnknown;
    rows = mine;
  }
  return rows;
}

Component empty_component(const ComponentSpec& spec) {
  // Unknown dimensions become 0, as does the first one; a scalar stays a scalar (a zero).
  std::vector<std::int64_t> shape = spec.shape.dims();
  std::ranges::replace(shape, PartialShape::kUnknown, 0);
  if (!shape.empty()) shape.front() = 0;
  if (spec.kind == ComponentSpec::Kind::Bytes) {
    if (shape.empty()) return std::string();
    return Strings();
  }
  return at::zeros(
      shape,
      at::TensorOptions().dtype(spec.dtype.value_or(at::kFloat)).layout(spec.is_sparse ? at::kSparse : at::kStrided));
}

}  // namespace

bool PartialShape::is_fully_defined() const {
  return dims_ && std::ranges::none_of(*dims_, [](std::int64_t dim) { return dim == kUnknown; });
}

PartialShape PartialShape::with_front(std::int64_t dim) const {
  if (!dims_) return {};
  std::vector<std::int64_t> dims = *dims_;
  dims.insert(dims.begin(), dim);
  return dims;
}

PartialShape PartialShape::without_front() const {
  if (!dims_ || dims_->empty()) return {};
  return std::vector<std::int64_t>(dims_->begin() + 1, dims_->end());
}

PartialShape PartialShape::with_dim0(std::int64_t dim) const {
  if (!dims_ || dims_->empty()) return *this;
  std::vector<std::int64_t> dims = *dims_;
  dims.front() = dim;
  return dims;
}

bool PartialShape::accepts(const std::vector<std::int64_t>& sizes) const {
  if (!dims_) return true;
  return std::equal(dims_->begin(), dims_->end(), sizes.begin(), sizes.end(),
                    [](std::int64_t want, std::int64_t have) { return want == kUnknown || want == have; });
}

PartialShape PartialShape::merged_with(const PartialShape& other) const {
  if (!dims_ || !other.dims_ || dims_->size() != other.dims_->size()) return {};
  std::vector<std::int64_t> dims = *dims_;
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (dims[i] != (*other.dims_)[i]) dims[i] = kUnknown;
  return dims;
}

std::string to_string(const PartialShape& shape) {
  if (!shape.has_rank()) return "?";
  const auto text_of = [](std::int64_t dim) { return dim == PartialShape::kUnknown ? "?" : std::to_string(dim); };
  return str("[", listed(shape.dims(), ", ", text_of), "]");
}

ComponentSpec ComponentSpec::of(const Component& component) {
  if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
    if (!tensor->defined()) return {Kind::Tensor};
    return {Kind::Tensor, tensor->scalar_type(), tensor->sizes().vec(), tensor->layout() != at::kStrided};
  }
  if (std::holds_alternative<std::string>(component)) return bytes();
  if (const auto* strings = std::get_if<Strings>(&component)) return bytes(PartialShape({strings->size()}));
  return dataset();
}

ComponentSpec ComponentSpec::merged_with(const ComponentSpec& other) const {
  if (kind != other.kind) return {};
  return {kind, dtype == other.dtype ? dtype : std::nullopt, shape.merged_with(other.shape),
          is_sparse && other.is_sparse};
}

ElementSpec ElementSpec::of(const Element& element) {
  ElementSpec spec;
  spec.components.emplace();
  for (const Component& component : element.components) spec.components->push_back(ComponentSpec::of(component));
  spec.skeleton = element.skeleton;
  return spec;
}

ElementSpec ElementSpec::batched(std::int64_t size) const {
  return with_shapes([&](const PartialShape& shape) { return shape.with_front(size); });
}

ElementSpec ElementSpec::unbatched() const { return with_shapes(std::mem_fn(&PartialShape::without_front)); }

ElementSpec ElementSpec::with_rows(std::int64_t rows) const {
  return with_shapes([&](const PartialShape& shape) { return shape.with_dim0(rows); });
}

ElementSpec ElementSpec::rebatched(const std::vector<std::int64_t>& sizes, bool drop_remainder) const {
  const std::int64_t size = sizes.front();
  const bool equal = std::ranges::all_of(sizes, [&](std::int64_t other) { return other == size; });
  const std::int64_t rows = common_rows(*this);
  const bool no_remainder = drop_remainder || (rows != PartialShape::kUnknown && size > 0 && rows % size == 0);
  return with_rows(equal && no_remainder ? size : PartialShape::kUnknown);
}

ElementSpec ElementSpec::ceil_split(int pieces) const {
  return with_shapes([&](const PartialShape& shape) {
    return shape.with_dim0(shape.rows() % pieces == 0 ? shape.rows() / pieces : PartialShape::kUnknown);
  });
}

ElementSpec ElementSpec::merged_with(const ElementSpec& other) const {
  if (!components || !other.components || components->size() != other.components->size()) return unknown();
  ElementSpec result = *this;
  for (std::size_t i = 0; i < components->size(); ++i)
    (*result.components)[i] = (*components)[i].merged_with((*other.components)[i]);
  return result;
}

ElementSpec ElementSpec::joined_with(const ElementSpec& other) const {
  if (!components || !other.components) return unknown();
  ElementSpec result = *this;
  result.components->insert(result.components->end(), other.components->begin(), other.components->end());
  result.skeleton = joined(skeleton, other.skeleton);
  return result;
}

std::optional<std::string> find_difference(const ElementSpec& a, const ElementSpec& b) {
  if (!a.components || !b.components) return std::nullopt;
  if (a.components->size() != b.components->size())
    return str(counted(static_cast<long long>(a.components->size()), "component"), " and ", b.components->size(), ": ",
               to_string(a), " and ", to_string(b));
  for (std::size_t i = 0; i < a.components->size(); ++i) {
    const ComponentSpec &of_a = (*a.components)[i], &of_b = (*b.components)[i];
    if (!can_be_one(of_a, of_b)) return str("component ", i, " is ", to_string(of_a), " and ", to_string(of_b));
  }
  if (a.skeleton && b.skeleton && *a.skeleton != *b.skeleton) return "maps have other keys, or vectors other lengths";
  return std::nullopt;
}

void require_dimensions(const ElementSpec& spec, const std::string& where, const RowsHelp& help) {
  for (std::size_t i = 0; spec.components && i < spec.components->size(); ++i) {
    const ComponentSpec& component = (*spec.components)[i];
    if (component.shape.is_scalar())
      throw InvalidArgument(errors::kShape, {.what = "every component needs a first dimension to take rows from",
                                             .where = where,
                                             .seen = str("component ", i, " is ", to_string(component)),
                                             .help = help.no_rows});
  }
}

void require_rows(const ElementSpec& spec, const std::string& where, const RowsHelp& help) {
  require_dimensions(spec, where, help);
  if (!spec.components) return;
  const std::vector<ComponentSpec>& all = *spec.components;
  const auto is_known = [](const ComponentSpec& component) { return component.shape.rows() != PartialShape::kUnknown; };
  const auto first = std::ranges::find_if(all, is_known);
  for (auto other = first; other != all.end(); ++other) {
    if (!is_known(*other) || other->shape.rows() == first->shape.rows()) continue;
    throw InvalidArgument(
        errors::kShape,
        {.what = "all components must have the same number of rows",
         .where = where,
         .seen = str(to_string(spec), ": component ", first - all.begin(), " has ", counted(first->shape.rows(), "row"),
                     ", component ", other - all.begin(), " has ", counted(other->shape.rows(), "row")),
         .help = help.unequal});
  }
}

bool tells_all(const ElementSpec& spec) {
  return spec.components && std::ranges::none_of(*spec.components, [](const ComponentSpec& component) {
           return component.kind == ComponentSpec::Kind::Unknown || !component.shape.has_rank() ||
                  (component.kind == ComponentSpec::Kind::Tensor && !component.dtype);
         });
}

Element empty_batch(const ElementSpec& spec, const Element& seen) {
  if (!tells_all(spec)) return own_copy(seen);
  Element empty;
  empty.skeleton = spec.skeleton;
  for (const ComponentSpec& component : *spec.components) empty.components.push_back(empty_component(component));
  return empty;
}

bool ElementSpec::operator==(const ElementSpec& other) const {
  const bool same_skeleton = skeleton == other.skeleton || (skeleton && other.skeleton && *skeleton == *other.skeleton);
  return same_skeleton && components == other.components;
}

std::string to_string(const ComponentSpec& spec) {
  switch (spec.kind) {
    case ComponentSpec::Kind::Unknown: return "unknown";
    case ComponentSpec::Kind::Dataset: return "dataset";
    case ComponentSpec::Kind::Bytes: return str("bytes", to_string(spec.shape));
    case ComponentSpec::Kind::Tensor: break;
  }
  return str(spec.is_sparse ? "sparse " : "", spec.dtype ? dtype_name(*spec.dtype) : "tensor", to_string(spec.shape));
}

std::string to_string(const ElementSpec& spec) {
  if (!spec.components) return "unknown";
  if (spec.components->size() == 1) return to_string(spec.components->front());
  return str("(", listed(*spec.components, ", ", [](const ComponentSpec& each) { return to_string(each); }), ")");
}

}  // namespace lockstep::data
