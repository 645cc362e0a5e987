#include "lockstep/data/row_writer.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/element_spec.h"

namespace lockstep::data {
namespace {

// A batch may be declared larger than the data: memory for it is only taken beforehand up to this.
constexpr std::int64_t kLargestPrepared = 64 << 20;

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.requires_grad();
}

}  // namespace

void RowWriter::start(const Element& first) {
  batch_.components.clear();
  batch_.skeleton = first.skeleton;
  row_bytes_.assign(first.size(), 0);
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Component& component = first.components[i];
    if (const auto* tensor = std::get_if<at::Tensor>(&component)) {
      row_bytes_[i] = is_plain(*tensor) ? tensor->nbytes() : 0;
      loose_ = loose_ || !is_plain(*tensor) ||
               static_cast<std::int64_t>(row_bytes_[i]) > kLargestPrepared / std::max<std::int64_t>(capacity_, 1);
    } else {
      loose_ = loose_ || !std::holds_alternative<std::string>(component);
    }
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

void RowWriter::add(Element& row) {
  if (count_ == 0) start(row);
  if (loose_) {
    rows_.push_back(std::move(row));
    ++count_;
    return;
  }
  bool fits = row.size() == batch_.size();
  for (std::size_t i = 0; fits && i < row.size(); ++i) {
    Component& to = batch_.components[i];
    if (auto* strings = std::get_if<Strings>(&to)) {
      auto* bytes = std::get_if<std::string>(&row.components[i]);
      fits = bytes != nullptr;
      if (fits) strings->values().push_back(std::move(*bytes));
      continue;
    }
    const at::Tensor& target = std::get<at::Tensor>(to);
    const auto* tensor = std::get_if<at::Tensor>(&row.components[i]);
    fits = tensor != nullptr && is_plain(*tensor) && tensor->scalar_type() == target.scalar_type() &&
           tensor->sizes() == target.sizes().slice(1);
    if (!fits || row_bytes_[i] == 0) continue;
    auto* place = static_cast<char*>(target.mutable_data_ptr()) + static_cast<std::size_t>(count_) * row_bytes_[i];
    if (tensor->is_contiguous())
      std::memcpy(place, tensor->const_data_ptr(), row_bytes_[i]);
    else
      std::memcpy(place, tensor->contiguous().const_data_ptr(), row_bytes_[i]);
  }
  if (!fits) {
    throw InvalidArgument(errors::kShape, {.what = "rows of one batch must have the same shape and type",
                                           .where = where_,
                                           .seen = str("row 0 is ", to_string(ElementSpec::of(batch_).unbatched()),
                                                       ", row ", count_, " is ", describe(row)),
                                           .help = "make the shapes equal in a map before it, or use padded_batch"});
  }
  ++count_;
}

Element RowWriter::finish() {
  Element result;
  if (loose_) {
    result = stack(std::move(rows_), where_);
  } else {
    result = std::move(batch_);
    for (Component& component : result.components)
      if (auto* tensor = std::get_if<at::Tensor>(&component))
        if (tensor->size(0) != count_) *tensor = tensor->narrow(0, 0, count_);
  }
  rows_.clear();
  batch_ = Element();
  count_ = 0;
  loose_ = false;
  return result;
}

}  // namespace lockstep::data
