#include "lockstep/data/element.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "lockstep/data/element_spec.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/own_tensor.h"

namespace lockstep::data {
namespace {

[[noreturn]] void throw_not(const char* wanted, std::size_t i, const Element& element) {
  throw InvalidArgument(errors::kStructure, {.what = str("component ", i, " of the element is not a ", wanted),
                                             .seen = describe(element),
                                             .help = "look at the dataset's element_spec(), and ask for what it has"});
}

}  // namespace

Element::Element(std::vector<Component> parts, SkeletonPtr shape)
    : components(std::move(parts)), skeleton(std::move(shape)) {}
Element::Element(const Element&) = default;
Element& Element::operator=(const Element&) = default;

Element Element::mapped(FunctionRef<Component(const Component&)> f) const {
  Element result({}, skeleton);
  result.components.reserve(components.size());
  for (const Component& component : components) result.components.push_back(f(component));
  return result;
}

Element Element::of(Component component) {
  Element element;
  element.components.push_back(std::move(component));
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

Element moved_to(Element element, at::Device device) {
  for (Component& component : element.components) {
    auto* tensor = std::get_if<at::Tensor>(&component);
    if (tensor && !tensor->is_meta()) *tensor = tensor->to(device);
  }
  return element;
}

void append(Element& element, Element&& more) {
  element.skeleton = joined(element.skeleton, more.skeleton);
  for (Component& component : more.components) element.components.push_back(std::move(component));
}

at::Tensor values_in_order(const at::Tensor& tensor, const Element& element, const char* where) {
  if (tensor.defined() && tensor.layout() == at::kStrided)
    return tensor.cpu().resolve_conj().resolve_neg().contiguous();
  throw InvalidArgument(
      errors::kStructure,
      {.what = str(tensor.defined() ? "a sparse tensor has no values in order" : "a tensor is undefined"),
       .where = where,
       .seen = describe(element),
       .help = tensor.defined() ? "call to_dense() in a map before" : "leave such elements out with a filter before"});
}

std::string describe(const Element& element) { return to_string(ElementSpec::of(element)); }

std::optional<std::int64_t> rows_of(const Component& component) {
  if (const auto* strings = std::get_if<Strings>(&component)) return strings->size();
  const auto* tensor = std::get_if<at::Tensor>(&component);
  return tensor && tensor->defined() && tensor->dim() > 0 ? std::optional(tensor->size(0)) : std::nullopt;
}

std::int64_t rows_for_reports(const Element& element) {
  return element.size() == 0 ? 1 : rows_of(element.components.front()).value_or(1);
}

std::int64_t row_count(const Element& batch, const std::string& where, const RowsHelp& help) {
  const auto refuse = [&](const char* what, const char* how) {
    throw InvalidArgument(errors::kShape, {.what = what, .where = where, .seen = describe(batch), .help = how});
  };
  std::optional<std::int64_t> count;
  for (const Component& component : batch.components) {
    const auto* tensor = std::get_if<at::Tensor>(&component);
    if (tensor && !tensor->defined()) refuse("an undefined tensor has no rows", "set every tensor of the element");
    const std::optional<std::int64_t> rows = rows_of(component);
    if (!rows) refuse("every component needs a first dimension to take rows from", help.no_rows);
    if (count && count != rows) refuse("all components must have the same batch size", help.unequal);
    count = rows;
  }
  if (!count)
    throw InvalidArgument(errors::kStructure, {.what = "an element without components has no rows",
                                               .where = where,
                                               .help = "give elements at least one tensor or byte string"});
  return *count;
}

Element row(const Element& batch, std::int64_t i) {
  Element result;
  row(batch, i, result);
  return result;
}

void row(const Element& batch, std::int64_t i, Element& element) {
  element.skeleton = batch.skeleton;
  element.components.clear();
  for (const Component& component : batch.components) {
    if (const auto* tensor = std::get_if<at::Tensor>(&component))
      element.components.emplace_back(own_row(*tensor, i));
    else
      element.components.emplace_back(std::get<Strings>(component)[i]);
  }
}

Component slice(const Component& component, std::int64_t begin, std::int64_t end) {
  if (const auto* tensor = std::get_if<at::Tensor>(&component)) return own_rows(*tensor, begin, end - begin);
  const Strings& strings = std::get<Strings>(component);
  return Strings(std::vector<std::string>(strings.begin() + begin, strings.begin() + end));
}

Element slice(const Element& batch, std::int64_t begin, std::int64_t end) {
  return batch.mapped([&](const Component& component) { return slice(component, begin, end); });
}

Element without_rows(const Element& element) {
  return element.mapped([](const Component& component) -> Component {
    if (std::holds_alternative<Strings>(component)) return Strings();
    const auto* tensor = std::get_if<at::Tensor>(&component);
    if (tensor == nullptr) return std::string();
    if (!tensor->defined()) return at::Tensor();
    std::vector<std::int64_t> sizes = tensor->sizes().vec();
    if (!sizes.empty()) sizes.front() = 0;
    return at::zeros(sizes, tensor->options());
  });
}

Element concatenate_batches(std::vector<Element>&& batches, const std::string& where, const char* help_if_different) {
  if (batches.empty())
    throw InvalidArgument(errors::kShape, {.what = "there must be at least one batch to concatenate, got 0",
                                           .where = where,
                                           .help = "leave this call out if there are no batches"});
  if (batches.size() == 1) return std::move(batches.front());
  const Element& first = batches.front();
  const auto like_first = [&](const Element& batch, std::size_t i) {
    const at::Tensor &mine = batch.tensor(i), &wanted = first.tensor(i);
    return mine.scalar_type() == wanted.scalar_type() && mine.sizes().slice(1) == wanted.sizes().slice(1);
  };
  for (const Element& batch : batches) {
    if (batch.size() != first.size())
      throw InvalidArgument(errors::kStructure, {.what = "rows of one batch must have the same structure",
                                                 .where = where,
                                                 .seen = str(describe(first), " and ", describe(batch)),
                                                 .help = "give all elements the same structure in a map before"});
    for (std::size_t i = 0; i < first.size(); ++i)
      if (!std::holds_alternative<Strings>(first.components[i]) && !like_first(batch, i))
        throw FailedPrecondition(errors::kShape,
                                 {.what = "rows of different shape or type cannot be put into one batch",
                                  .where = where,
                                  .seen = str(describe(first), " and ", describe(batch)),
                                  .help = help_if_different});
  }
  return join_batches(std::move(batches));
}

Element join_batches(std::vector<Element>&& batches) {
  const Element& first = batches.front();
  Element result({}, first.skeleton);
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (std::holds_alternative<Strings>(first.components[i])) {
      std::vector<std::string> all;
      for (Element& batch : batches)
        for (std::string& value : std::get<Strings>(batch.components[i]).values()) all.push_back(std::move(value));
      result.components.emplace_back(Strings(std::move(all)));
    } else {
      std::vector<at::Tensor> parts;
      for (const Element& batch : batches) parts.push_back(batch.tensor(i));
      result.components.emplace_back(at::cat(parts));
    }
  }
  return result;
}

}  // namespace lockstep::data
