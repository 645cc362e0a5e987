#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/values/structure.h"

// Elements of a pipeline with the user's types erased: a flat list of components, one per leaf of the user's structure.
namespace lockstep::data {

class Stage;
using StagePtr = std::shared_ptr<const Stage>;  ///< a node of a pipeline

/// A batch of byte strings (lines, records, file names): `batch` turns strings into Strings as it turns tensors into a
/// tensor. In a structure it is one leaf.
class LOCKSTEP_EXPORT Strings {
 public:
  Strings() = default;
  Strings(std::vector<std::string> values) : values_(std::move(values)) {}  // NOLINT: the same thing
  Strings(std::initializer_list<std::string> values) : values_(values) {}

  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  const std::string& operator[](std::int64_t i) const { return values_[static_cast<std::size_t>(i)]; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  /// The strings.
  const std::vector<std::string>& values() const { return values_; }
  std::vector<std::string>& values() { return values_; }

  bool operator==(const Strings&) const = default;

 private:
  std::vector<std::string> values_;
};

/// One leaf of an element: a tensor, a byte string, a batch of byte strings, or a dataset (an element of `window`).
using Component = std::variant<at::Tensor, std::string, Strings, StagePtr>;

/// The lengths and keys of the vectors and maps within a structure, in visiting order. They turn the flat components
/// back into the user's structure. Tuples, arrays and plain structs need none.
struct Skeleton {
  std::vector<std::variant<std::int64_t, std::string>> marks;  ///< a length; a map's length is followed by its keys
  bool operator==(const Skeleton&) const = default;
};
using SkeletonPtr = std::shared_ptr<const Skeleton>;  ///< null: the user's type is enough

/// One element of a dataset. Passed by reference and moved; copying one shares its tensors and copies its strings.
struct LOCKSTEP_EXPORT Element {
  std::vector<Component> components;  ///< the leaves, in the order in which they are visited
  SkeletonPtr skeleton;               ///< null where the user's type says it all

  // Stages move elements all the time. Copies are rare and therefore compiled once: copying a vector of variants is a
  // large part of this header's compile time.
  Element() = default;
  explicit Element(std::vector<Component> parts, SkeletonPtr shape = nullptr);
  Element(const Element&);
  Element(Element&&) noexcept = default;
  Element& operator=(const Element&);
  Element& operator=(Element&&) noexcept = default;
  ~Element() = default;
  /// Iterators swap for each row; three moves would be slower.
  friend void swap(Element& a, Element& b) noexcept {
    a.components.swap(b.components);
    a.skeleton.swap(b.skeleton);
  }
  /// An element with one component.
  static Element of(Component component);

  std::size_t size() const { return components.size(); }
  /// The tensor of component i; an error naming the component if it is not a tensor.
  const at::Tensor& tensor(std::size_t i) const;
  const std::string& bytes(std::size_t i) const;

  /// The element with `f(component)` in place of each component.
  Element mapped(FunctionRef<Component(const Component&)> f) const;
};

/// The same values in new memory and outside any graph, for an element that is returned more than once.
LOCKSTEP_EXPORT Element own_copy(Element element);
/// The same values with tensors on this device; those without memory are kept.
LOCKSTEP_EXPORT Element moved_to(Element element, at::Device device);
/// Appends the components of `more` to `element`, as `zip` and `enumerate` do.
LOCKSTEP_EXPORT void append(Element& element, Element&& more);
/// The marks of `a` followed by the marks of `b`; null if there are none.
LOCKSTEP_EXPORT SkeletonPtr joined(const SkeletonPtr& a, const SkeletonPtr& b);

/// A tensor of an element as one contiguous block in CPU memory. InvalidArgument for undefined and sparse tensors;
/// `where` names the stage.
LOCKSTEP_EXPORT at::Tensor values_in_order(const at::Tensor& tensor, const Element& element, const char* where);

/// "(float[784], int64[])", for messages.
LOCKSTEP_EXPORT std::string describe(const Element& element);

/// Rows of one batch: stacks rows into an element whose components have one more dimension; see RowWriter. Shapes,
/// dtypes and structures must match; `where` names the stage in the error.
LOCKSTEP_EXPORT Element stack(std::vector<Element>&& rows, const std::string& where);
/// The first dimension of a component; none for a scalar.
LOCKSTEP_EXPORT std::optional<std::int64_t> rows_of(const Component& component);
/// The rows of an element by its first component, for reports; 1 for a scalar.
LOCKSTEP_EXPORT std::int64_t rows_for_reports(const Element& element);
/// Help texts for errors about rows.
struct RowsHelp {
  /// Help for a value without rows.
  const char* no_rows = "call batch() before, or give tensors with a first dimension";
  const char* unequal = "make their first dimensions equal in a map";  ///< help for unequal numbers of rows
};
/// For batches that do not come from a dataset.
inline constexpr RowsHelp kHelpForBatches{
    .no_rows = "give tensors with a first dimension, and to run what has none: run(step, split(batch), value)",
    .unequal = "give one row for each example, and to run what is not: run(step, split(batch), value)"};
/// The number of rows of a batch: the first dimension that all components share; an error otherwise.
LOCKSTEP_EXPORT std::int64_t row_count(const Element& batch, const std::string& where, const RowsHelp& help = {});
/// Row i of a batch: separate tensors over the batch's memory; see own_row. Given an element, writes it there.
LOCKSTEP_EXPORT Element row(const Element& batch, std::int64_t i);
LOCKSTEP_EXPORT void row(const Element& batch, std::int64_t i, Element& element);
/// Rows begin to end - 1 of a batch: separate tensors over the batch's memory; see own_rows (strings are copied).
LOCKSTEP_EXPORT Component slice(const Component& component, std::int64_t begin, std::int64_t end);
LOCKSTEP_EXPORT Element slice(const Element& batch, std::int64_t begin, std::int64_t end);
/// A batch without its rows, in new memory; scalars become zeros.
LOCKSTEP_EXPORT Element without_rows(const Element& batch);
/// Concatenates the rows of batches that are known to match, in new memory.
Element join_batches(std::vector<Element>&& batches);
/// One batch of the rows of several, in order.
LOCKSTEP_EXPORT Element
concatenate_batches(std::vector<Element>&& batches, const std::string& where,
                    const char* help_if_different = "make them alike in a map before, or use padded_batch");

}  // namespace lockstep::data

namespace lockstep {
template <>
inline constexpr bool treat_as_leaf_v<data::Strings> = true;
}  // namespace lockstep
