#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/element.h"

namespace lockstep::data {

/// A shape whose rank or single dimensions may be unknown.
class LOCKSTEP_EXPORT PartialShape {
 public:
  static constexpr std::int64_t kUnknown = -1;  ///< stands for a dimension that is not known

  PartialShape() = default;                                                 ///< unknown rank
  PartialShape(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {}  // NOLINT: dims are a shape
  PartialShape(std::initializer_list<std::int64_t> dims) : dims_(dims) {}

  /// The number of dimensions and the dimensions themselves; only if `has_rank()`.
  bool has_rank() const { return dims_.has_value(); }
  std::int64_t rank() const { return static_cast<std::int64_t>(dims_->size()); }
  const std::vector<std::int64_t>& dims() const { return *dims_; }
  std::int64_t dim(std::int64_t i) const { return (*dims_)[static_cast<std::size_t>(i)]; }
  /// Whether it is known to be a scalar; whether all of it is known.
  bool is_scalar() const { return dims_ && dims_->empty(); }
  bool is_fully_defined() const;
  /// The first dimension of a batch; unknown for a scalar.
  std::int64_t rows() const { return dims_ && !dims_->empty() ? dims_->front() : kUnknown; }

  PartialShape with_front(std::int64_t dim) const;  ///< one more dimension in front; unknown rank stays unknown
  PartialShape without_front() const;               ///< the first dimension taken away; unknown for a scalar
  PartialShape with_dim0(std::int64_t dim) const;   ///< another first dimension; a scalar or unknown rank as it is
  /// Whether a tensor of these sizes fits.
  bool accepts(const std::vector<std::int64_t>& sizes) const;
  /// A shape that covers both: dimensions that differ become unknown.
  PartialShape merged_with(const PartialShape& other) const;

  bool operator==(const PartialShape&) const = default;

 private:
  std::optional<std::vector<std::int64_t>> dims_;
};

LOCKSTEP_EXPORT std::string to_string(const PartialShape& shape);  ///< "[?, 784]", "[]", "?" for unknown rank

/// The spec of one component before any row is read.
struct LOCKSTEP_EXPORT ComponentSpec {
  /// What the component is.
  enum class Kind { Unknown, Tensor, Bytes, Dataset };

  Kind kind = Kind::Unknown;                           ///< what the component is
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< only tensors have one; none if it is not known
  PartialShape shape = {};                             ///< shape of a tensor, or of a batch of strings
  bool is_sparse = false;                              ///< a tensor of a sparse layout

  /// A tensor, byte strings, a dataset, or what `component` is.
  static ComponentSpec tensor(at::ScalarType dtype, PartialShape shape) {
    return {Kind::Tensor, dtype, std::move(shape)};
  }
  static ComponentSpec bytes(PartialShape shape = PartialShape({})) {
    return {Kind::Bytes, std::nullopt, std::move(shape)};
  }
  static ComponentSpec dataset() { return {Kind::Dataset, std::nullopt, PartialShape({})}; }
  static ComponentSpec of(const Component& component);

  /// What is true of both.
  ComponentSpec merged_with(const ComponentSpec& other) const;
  bool operator==(const ComponentSpec&) const = default;
};

/// The spec of a dataset's elements before any row is read.
struct LOCKSTEP_EXPORT ElementSpec {
  /// None if not even the number of components is known (a `map` to vectors or maps without a declared spec).
  std::optional<std::vector<ComponentSpec>> components;
  SkeletonPtr skeleton = nullptr;  ///< lengths and keys of vectors and maps

  /// Nothing, or only the number of components, is known.
  static ElementSpec unknown() { return {}; }
  static ElementSpec unknown(std::size_t count) { return {std::vector<ComponentSpec>(count)}; }
  /// The spec of this element.
  static ElementSpec of(const Element& element);

  /// Whether the number of components is known.
  bool is_known() const { return components.has_value(); }
  /// The spec with `f` applied to each component.
  template <class F>
  ElementSpec mapped(F&& f) const {
    ElementSpec result = *this;
    if (result.components)
      for (ComponentSpec& component : *result.components) component = f(std::as_const(component));
    return result;
  }
  template <class F>
  ElementSpec with_shapes(F&& f) const {
    return mapped([&](ComponentSpec component) {
      component.shape = f(std::as_const(component.shape));
      return component;
    });
  }
  /// Spec of batches of such elements; `size` is PartialShape::kUnknown if the last may be smaller.
  ElementSpec batched(std::int64_t size) const;
  ElementSpec unbatched() const;
  ElementSpec with_rows(std::int64_t rows) const;  ///< with a new first dimension, except for scalars
  /// Spec of a stream of such batches that is cut by `sizes`: rows are known if all sizes are equal and divide a known
  /// number of rows (or remainders are dropped).
  ElementSpec rebatched(const std::vector<std::int64_t>& sizes, bool drop_remainder = false) const;
  /// Spec of the pieces of a ceil split of such batches: rows are known if divisible by the number of pieces.
  ElementSpec ceil_split(int pieces) const;
  ElementSpec merged_with(const ElementSpec& other) const;
  ElementSpec joined_with(const ElementSpec& other) const;  ///< components of both, as in `zip`

  bool operator==(const ElementSpec& other) const;
};

/// How the two differ in a way that one dataset cannot: in the number of components, keys, types or ranks ("component 0
/// is int64[] and float32[]"). None if they are compatible as far as known.
LOCKSTEP_EXPORT std::optional<std::string> find_difference(const ElementSpec& a, const ElementSpec& b);
/// InvalidArgument if a component is known to be a scalar, which has no rows. `where` names the stage.
LOCKSTEP_EXPORT void require_dimensions(const ElementSpec& spec, const std::string& where, const RowsHelp& help = {});
/// The same, and also if components are known to have different numbers of rows.
LOCKSTEP_EXPORT void require_rows(const ElementSpec& spec, const std::string& where, const RowsHelp& help = {});

/// Whether kinds, dtypes and ranks of all components are known.
LOCKSTEP_EXPORT bool tells_all(const ElementSpec& spec);
/// A batch without rows, in new memory: by the spec, or like `seen`, a batch without rows, if the spec is incomplete.
/// Has no components if `seen` has none either.
LOCKSTEP_EXPORT Element empty_batch(const ElementSpec& spec, const Element& seen);

LOCKSTEP_EXPORT std::string to_string(const ComponentSpec& spec);  ///< "float32[?, 784]", "bytes[]", "unknown"
LOCKSTEP_EXPORT std::string to_string(const ElementSpec& spec);    ///< "(float32[?, 784], int64[?])"

}  // namespace lockstep::data
