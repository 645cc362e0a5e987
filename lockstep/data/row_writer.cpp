#include "lockstep/data/row_writer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/data/own_tensor.h"

namespace lockstep::data {
namespace {

// A batch size may exceed the data: memory is reserved in advance only up to this.
constexpr std::int64_t kLargestPrepared = 64 << 20;

/// Whether the bytes in memory are the values in order.
bool is_readable(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

/// Rows of one form, whatever their memory looks like.
Element stack_any(std::vector<Element>&& rows) {
  for (Element& row : rows) {
    row = row.mapped([](const Component& component) -> Component {
      if (const auto* tensor = std::get_if<at::Tensor>(&component)) return tensor->unsqueeze(0);
      return Strings({std::get<std::string>(component)});
    });
  }
  return join_batches(std::move(rows));
}

}  // namespace

RowForm::RowForm(const Element& row, const std::string& where) : spec_(ElementSpec::of(row)), memory_(row.size()) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Component& component = row.components[i];
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      if (!tensor->defined())
        throw InvalidArgument(errors::kShape, {.what = str("component ", i, " of a row is an undefined tensor"),
                                               .where = where,
                                               .seen = data::describe(row),
                                               .help = "set every tensor of a row before it is batched"});
      memory_[i] = {tensor->device(), tensor->layout()};
    } else if (!std::holds_alternative<std::string>(component)) {
      throw Unimplemented(errors::kStructure,
                          {.what = "batches of string batches or of datasets cannot be batched again",
                           .where = where,
                           .seen = data::describe(row),
                           .help = "unbatch or flat_map them first"});
    }
  }
}

bool RowForm::fits(const Element& row) const {
  if (row.size() != memory_.size()) return false;
  if (row.skeleton != spec_.skeleton && !(row.skeleton && spec_.skeleton && *row.skeleton == *spec_.skeleton))
    return false;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const ComponentSpec& component = (*spec_.components)[i];
    if (component.kind == ComponentSpec::Kind::Bytes) {
      if (!std::holds_alternative<std::string>(row.components[i])) return false;
      continue;
    }
    const auto* tensor = std::get_if<at::Tensor>(&row.components[i]);
    if (tensor == nullptr || !tensor->defined() || tensor->scalar_type() != component.dtype ||
        tensor->sizes() != at::IntArrayRef(component.shape.dims()) ||
        !(Memory{tensor->device(), tensor->layout()} == memory_[i]))
      return false;
  }
  return true;
}

Element RowForm::empty_batch() const {
  Element batch;
  batch.skeleton = spec_.skeleton;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const ComponentSpec& component = (*spec_.components)[i];
    if (component.kind == ComponentSpec::Kind::Bytes)
      batch.components.emplace_back(Strings());
    else
      batch.components.emplace_back(
          at::zeros(component.shape.with_front(0).dims(),
                    at::TensorOptions(*component.dtype).device(memory_[i].device).layout(memory_[i].layout)));
  }
  return batch;
}

InvalidArgument RowForm::misfit(const RowForm& other, std::int64_t number, const std::string& where) const {
  return InvalidArgument(errors::kShape,
                         {.what = "rows of one batch must have the same shape and type",
                          .where = where,
                          .seen = str("row 0 is ", describe(), ", row ", number, " is ", other.describe()),
                          .help = "make the shapes equal in a map before, or use padded_batch"});
}

std::string RowForm::describe() const {
  std::string text = to_string(spec_);
  if (spec_.skeleton) {
    std::string marks;
    for (const auto& mark : spec_.skeleton->marks)
      std::visit([&](const auto& each) { marks += str(marks.empty() ? "" : " ", each); }, mark);
    text += str(" as {", marks, "}");
  }
  for (const Memory& memory : memory_)
    if (!(memory == Memory{})) return str(text, " on ", memory.device.str());
  return text;
}

Element stack(std::vector<Element>&& rows, const std::string& where) {
  if (rows.empty())
    throw InvalidArgument(errors::kShape, {.what = "a batch must have at least one row, got none",
                                           .where = where,
                                           .help = "give rows, or an element_spec with their dtypes and shapes"});
  BufferPool pool;
  RowWriter writer(pool, where);
  writer.set_capacity(std::ssize(rows));
  for (Element& row : rows)
    if (!writer.add(row)) writer.throw_misfit(row);
  return writer.finish();
}

void RowWriter::prepare(const Element& first) {
  row_bytes_.clear();
  rows_.clear();
  batch_.components.clear();
  batch_.skeleton = first.skeleton;
  loose_ = false;
  for (const Component& component : first.components) {
    const auto* tensor = std::get_if<at::Tensor>(&component);
    const bool is_loose = tensor && (!tensor->is_cpu() || tensor->layout() != at::kStrided || tensor->requires_grad());
    row_bytes_.push_back(tensor && !is_loose ? tensor->nbytes() : 0);
    loose_ = loose_ || is_loose ||
             static_cast<std::int64_t>(row_bytes_.back()) > kLargestPrepared / std::max<std::int64_t>(capacity_, 1);
  }
  if (loose_) return;
  for (const Component& component : first.components) {
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      std::vector<std::int64_t> shape = tensor->sizes().vec();
      shape.insert(shape.begin(), capacity_);
      batch_.components.emplace_back(pool_.take(shape, tensor->scalar_type()));
    } else {
      batch_.components.emplace_back(Strings());
    }
  }
}

void RowWriter::look_at(const Element& row) { form_.emplace(row, where_); }

void RowWriter::throw_misfit(const Element& row) const {
  throw form_->misfit(RowForm(row, where_), rows_of_batch_, where_);
}

bool RowWriter::add(Element& row) {
  if (!form_ || !form_->fits(row)) {
    if (rows_of_batch_ > 0) return false;
    look_at(row);
  }
  if (count_ == 0) prepare(row);
  ++rows_of_batch_;
  ++count_;
  if (loose_) {
    rows_.push_back(std::move(row));
    return true;
  }
  for (std::size_t i = 0; i < row.size(); ++i) {
    Component& to = batch_.components[i];
    if (auto* strings = std::get_if<Strings>(&to)) {
      strings->values().push_back(std::move(std::get<std::string>(row.components[i])));
      continue;
    }
    if (row_bytes_[i] == 0) continue;
    const at::Tensor& tensor = std::get<at::Tensor>(row.components[i]);
    auto* place = static_cast<char*>(std::get<at::Tensor>(to).mutable_data_ptr()) +
                  static_cast<std::size_t>(count_ - 1) * row_bytes_[i];
    if (is_readable(tensor))
      std::memcpy(place, tensor.const_data_ptr(), row_bytes_[i]);
    else
      std::memcpy(place, tensor.resolve_conj().resolve_neg().contiguous().const_data_ptr(), row_bytes_[i]);
  }
  return true;
}

Element RowWriter::finish() {
  const std::int64_t count = std::exchange(count_, 0);
  if (loose_) return stack_any(std::exchange(rows_, {}));
  Element batch = std::exchange(batch_, {});
  for (Component& component : batch.components)
    if (auto* tensor = std::get_if<at::Tensor>(&component); tensor != nullptr && tensor->size(0) != count)
      *tensor = own_rows(*tensor, 0, count);
  return batch;
}

}  // namespace lockstep::data
