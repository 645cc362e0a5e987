#include "lockstep/data/element.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/own_tensor.h"
#include "lockstep/data/row_view.h"

namespace lockstep::data {
namespace {

[[noreturn]] void throw_not(const char* wanted, std::size_t i, const Element& element) {
  throw InvalidArgument(errors::kStructure,
                        {.what = str("component ", i, " of the element is not a ", wanted), .seen = describe(element)});
}

/// Whether its bytes are its values, in whatever order.
bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.requires_grad() &&
         !tensor.is_conj() && !tensor.is_neg();
}

[[noreturn]] void throw_rows_differ(std::size_t component, std::size_t row, const Component& first,
                                    const Component& other, const std::string& where) {
  throw InvalidArgument(errors::kShape,
                        {.what = str("rows of one batch must have the same shape and type"),
                         .where = where,
                         .seen = str("component ", component, ": row 0 is ", to_string(ComponentSpec::of(first)),
                                     ", row ", row, " is ", to_string(ComponentSpec::of(other))),
                         .help = "make the shapes equal in a map before it, or use padded_batch"});
}

at::Tensor stack_tensors(const std::vector<Element>& rows, std::size_t i, const std::string& where) {
  const at::Tensor& first = std::get<at::Tensor>(rows.front().components[i]);
  bool plain = is_plain(first);
  for (std::size_t r = 1; r < rows.size(); ++r) {
    const auto* other = std::get_if<at::Tensor>(&rows[r].components[i]);
    if (other == nullptr || other->scalar_type() != first.scalar_type() || other->sizes() != first.sizes())
      throw_rows_differ(i, r, rows.front().components[i], rows[r].components[i], where);
    plain = plain && is_plain(*other);
  }
  if (!plain) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(rows.size());
    for (const Element& each : rows) tensors.push_back(std::get<at::Tensor>(each.components[i]));
    return at::stack(tensors);
  }
  std::vector<std::int64_t> shape = first.sizes().vec();
  shape.insert(shape.begin(), static_cast<std::int64_t>(rows.size()));
  at::Tensor result = at::empty(shape, first.options());
  const std::size_t bytes = first.nbytes();
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  for (const Element& each : rows) {
    const at::Tensor& tensor = std::get<at::Tensor>(each.components[i]);
    if (bytes > 0) std::memcpy(to, (tensor.is_contiguous() ? tensor : tensor.contiguous()).const_data_ptr(), bytes);
    to += bytes;
  }
  return result;
}

Strings stack_strings(std::vector<Element>& rows, std::size_t i, const std::string& where) {
  std::vector<std::string> values;
  values.reserve(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    auto* bytes = std::get_if<std::string>(&rows[r].components[i]);
    if (bytes == nullptr) throw_rows_differ(i, r, std::string(), rows[r].components[i], where);
    values.push_back(std::move(*bytes));
  }
  return values;
}

void check_component_counts(const std::vector<Element>& elements, const std::string& where) {
  for (std::size_t r = 1; r < elements.size(); ++r) {
    if (elements[r].size() == elements.front().size()) continue;
    throw InvalidArgument(errors::kStructure, {.what = "rows of one batch must have the same structure",
                                               .where = where,
                                               .seen = str("row 0 is ", describe(elements.front()), ", row ", r, " is ",
                                                           describe(elements[r]))});
  }
}

}  // namespace

Element Element::of(at::Tensor tensor) {
  Element element;
  element.components.emplace_back(std::move(tensor));
  return element;
}

Element Element::of(std::string bytes) {
  Element element;
  element.components.emplace_back(std::move(bytes));
  return element;
}

const at::Tensor& Element::tensor(std::size_t i) const {
  const auto* found = i < size() ? std::get_if<at::Tensor>(&components[i]) : nullptr;
  if (found == nullptr) throw_not("tensor", i, *this);
  return *found;
}

const std::string& Element::bytes(std::size_t i) const {
  const auto* found = i < size() ? std::get_if<std::string>(&components[i]) : nullptr;
  if (found == nullptr) throw_not("byte string", i, *this);
  return *found;
}

SkeletonPtr joined(const SkeletonPtr& a, const SkeletonPtr& b) {
  if (!a) return b;
  if (!b) return a;
  auto both = std::make_shared<Skeleton>(*a);
  both->marks.insert(both->marks.end(), b->marks.begin(), b->marks.end());
  return both;
}

Element own_copy(Element element) {
  for (Component& component : element.components) {
    if (auto* tensor = std::get_if<at::Tensor>(&component); tensor != nullptr && tensor->defined())
      *tensor = tensor->detach().clone();
  }
  return element;
}

void append(Element& element, Element&& more) {
  element.skeleton = joined(element.skeleton, more.skeleton);
  for (Component& component : more.components) element.components.push_back(std::move(component));
}

std::string describe(const Element& element) { return to_string(ElementSpec::of(element)); }

Element stack(std::vector<Element>&& rows, const std::string& where) {
  if (rows.empty()) throw InvalidArgument(errors::kShape, {.what = "a batch needs at least one row", .where = where});
  check_component_counts(rows, where);
  Element batch;
  batch.skeleton = rows.front().skeleton;
  for (std::size_t i = 0; i < rows.front().size(); ++i) {
    const Component& first = rows.front().components[i];
    if (std::holds_alternative<at::Tensor>(first)) {
      batch.components.emplace_back(stack_tensors(rows, i, where));
    } else if (std::holds_alternative<std::string>(first)) {
      batch.components.emplace_back(stack_strings(rows, i, where));
    } else {
      throw Unimplemented(errors::kStructure,
                          {.what = "batches of string batches or of datasets cannot be batched once more",
                           .where = where,
                           .seen = describe(rows.front()),
                           .help = "unbatch or flat_map them first"});
    }
  }
  return batch;
}

std::int64_t row_count(const Element& batch, const std::string& where) {
  std::optional<std::int64_t> count;
  for (const Component& component : batch.components) {
    std::int64_t rows = -1;
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      if (!tensor->defined())
        throw InvalidArgument(errors::kShape, {.what = "an undefined tensor has no rows", .where = where});
      if (tensor->dim() > 0) rows = tensor->size(0);
    } else if (const auto* strings = std::get_if<Strings>(&component)) {
      rows = strings->size();
    }
    if (rows < 0)
      throw InvalidArgument(errors::kShape, {.what = "every component needs a first dimension to take rows from",
                                             .where = where,
                                             .seen = describe(batch)});
    if (count && *count != rows)
      throw InvalidArgument(errors::kShape, {.what = "all components must have the same batch size in each component",
                                             .where = where,
                                             .seen = describe(batch)});
    count = rows;
  }
  if (!count)
    throw InvalidArgument(errors::kStructure, {.what = "an element without components has no rows", .where = where});
  return *count;
}

Element row(const Element& batch, std::int64_t i) {
  Element result;
  row_view(batch, i, result);
  return result;
}

Component slice(const Component& component, std::int64_t begin, std::int64_t end) {
  if (const auto* tensor = std::get_if<at::Tensor>(&component)) return own_rows(*tensor, begin, end - begin);
  const Strings& strings = std::get<Strings>(component);
  return Strings(std::vector<std::string>(strings.begin() + begin, strings.begin() + end));
}

Element slice(const Element& batch, std::int64_t begin, std::int64_t end) {
  Element result;
  result.skeleton = batch.skeleton;
  result.components.reserve(batch.size());
  for (const Component& component : batch.components) result.components.push_back(slice(component, begin, end));
  return result;
}

Element concatenate_batches(std::vector<Element>&& batches, const std::string& where) {
  if (batches.empty()) throw InvalidArgument(errors::kShape, {.what = "nothing to put together", .where = where});
  if (batches.size() == 1) return std::move(batches.front());
  check_component_counts(batches, where);
  Element result;
  result.skeleton = batches.front().skeleton;
  for (std::size_t i = 0; i < batches.front().size(); ++i) {
    if (std::holds_alternative<Strings>(batches.front().components[i])) {
      std::vector<std::string> all;
      for (Element& batch : batches)
        for (std::string& value : std::get<Strings>(batch.components[i]).values()) all.push_back(std::move(value));
      result.components.emplace_back(Strings(std::move(all)));
      continue;
    }
    std::vector<at::Tensor> parts;
    for (const Element& batch : batches) {
      const at::Tensor& part = batch.tensor(i);
      const at::Tensor& first = batches.front().tensor(i);
      if (part.scalar_type() != first.scalar_type() || part.sizes().slice(1) != first.sizes().slice(1))
        throw FailedPrecondition(errors::kShape, {.what = "rows of different shape cannot be put into one batch",
                                                  .where = where,
                                                  .seen = str(describe(batches.front()), " and ", describe(batch))});
      parts.push_back(part);
    }
    result.components.emplace_back(at::cat(parts));
  }
  return result;
}

}  // namespace lockstep::data
