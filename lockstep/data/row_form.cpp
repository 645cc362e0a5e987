#include "lockstep/data/row_form.h"

#include "lockstep/base/text.h"

namespace lockstep::data {

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

}  // namespace lockstep::data
