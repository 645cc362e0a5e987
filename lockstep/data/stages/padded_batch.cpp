#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/data/stages/batching.h"

namespace lockstep::data {
namespace {

double largest_float(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf: return 65504;
    case at::kFloat: return std::numeric_limits<float>::max();
    case at::kBFloat16: return 0x1.FEp127;
    case at::kFloat8_e4m3fn: return 448;
    case at::kFloat8_e4m3fnuz: return 240;
    case at::kFloat8_e5m2:
    case at::kFloat8_e5m2fnuz: return 57344;
    default: return std::numeric_limits<double>::max();
  }
}

/// Whether a tensor of this type can hold the value; floats may round it.
bool fits(const c10::Scalar& value, at::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return true;
  if (value.isComplex()) return false;
  const double number = value.toDouble();
  if (c10::isFloatingType(dtype)) return !std::isfinite(number) || std::abs(number) <= largest_float(dtype);
  try {
    const std::int64_t held = at::full({}, value, at::TensorOptions(dtype)).item().toLong();
    if (!value.isFloatingPoint()) return held == value.toLong();
    return number < 0x1p63 && static_cast<double>(held) == number;  // 2^63 is the first number that int64 cannot hold
  } catch (const std::exception&) {
    return false;  // out of range
  }
}

std::string text_of(const c10::Scalar& value) {
  if (value.isBoolean()) return value.toBool() ? "true" : "false";
  if (value.isComplex()) return "a complex number";
  return value.isFloatingPoint() ? str(value.toDouble()) : str(value.toLong());
}

const c10::Scalar& value_of(const PaddedBatchOptions& options, std::size_t component) {
  return options.padding_values[options.padding_values.size() == 1 ? 0 : component];
}

void require_count(std::size_t given, const char* what, std::size_t components, bool one_for_all,
                   const std::string& where) {
  if (given == 0 || given == components || (one_for_all && given == 1)) return;
  throw InvalidArgument(
      errors::kBadOption,
      {.what = str(counted(static_cast<long long>(given), what), " for elements of ",
                   counted(static_cast<long long>(components), "component")),
       .where = where,
       .seen = given < components ? str("component ", given, " has none") : str("there is no component ", components),
       .help = str("give one ", what, " for each component, ", one_for_all ? "one for all, " : "", "or none")});
}

/// Throws if the options are impossible for elements with this spec, as far as known.
void require_fitting(const PaddedBatchOptions& options, const ElementSpec& spec, const std::string& where) {
  if (!spec.components) return;
  require_count(options.padded_shapes.size(), "padded shape", spec.components->size(), false, where);
  require_count(options.padding_values.size(), "padding value", spec.components->size(), true, where);
  for (std::size_t i = 0; i < spec.components->size(); ++i) {
    const ComponentSpec& component = (*spec.components)[i];
    if (component.is_sparse)
      throw InvalidArgument(errors::kShape,
                            {.what = str("padded_batch takes dense tensors, component ", i, " is sparse"),
                             .where = where,
                             .seen = to_string(spec),
                             .help = "call to_dense() in a map before, or use batch"});
    if (!options.padded_shapes.empty() && options.padded_shapes[i] && component.shape.has_rank() &&
        static_cast<std::int64_t>(options.padded_shapes[i]->size()) != component.shape.rank())
      throw InvalidArgument(
          errors::kShape,
          {.what = str("the padded shape of component ", i, " must have the component's rank"),
           .where = where,
           .seen = str(to_string(PartialShape(*options.padded_shapes[i])), " for ", to_string(component)),
           .help = "give one size for each dimension of a row, -1 for the longest"});
    if (component.kind != ComponentSpec::Kind::Tensor || !component.dtype || options.padding_values.empty()) continue;
    if (!fits(value_of(options, i), *component.dtype))
      throw InvalidArgument(errors::kBadOption,
                            {.what = str("the padding value of component ", i, " does not fit its type"),
                             .where = where,
                             .seen = str(text_of(value_of(options, i)), " for ", to_string(component)),
                             .help = "give each component a value of its own type"});
  }
}

class PaddedBatchIterator final : public BatchingIterator<ElementIterator> {
 public:
  PaddedBatchIterator(IteratorPtr input, const BatchShape& shape, PaddedBatchOptions options, std::string where)
      : BatchingIterator(std::move(input), shape), options_(std::move(options)), where_(std::move(where)) {}

  bool next(Element& element) override {
    std::vector<Element> rows;
    if (!read_batch([&](Element& row) { rows.push_back(std::move(row)); })) return false;
    require_fitting(options_, ElementSpec::of(rows.front()), where_);
    for (std::size_t i = 0; i < rows.front().size(); ++i)
      if (std::holds_alternative<at::Tensor>(rows.front().components[i])) pad(rows, i);
    element = stack(std::move(rows), where_);
    return true;
  }

 private:
  /// Pads component i of all rows to the requested size, or to the largest of them.
  void pad(std::vector<Element>& rows, std::size_t i) const {
    const at::Tensor& first = rows.front().tensor(i);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(first.dim()), 0);
    for (const Element& row : rows) {
      const at::Tensor& tensor = row.tensor(i);
      if (tensor.dim() != first.dim())
        throw InvalidArgument(errors::kShape, {.what = "rows to be padded must have the same rank",
                                               .where = where_,
                                               .seen = str(describe(rows.front()), " and ", describe(row)),
                                               .help = "reshape the rows in a map before padded_batch"});
      for (std::size_t d = 0; d < sizes.size(); ++d) sizes[d] = std::max(sizes[d], tensor.sizes()[d]);
    }
    if (!options_.padded_shapes.empty() && options_.padded_shapes[i]) fix_sizes(sizes, *options_.padded_shapes[i], i);
    const c10::Scalar value = options_.padding_values.empty() ? 0 : value_of(options_, i);
    for (Element& row : rows) {
      at::Tensor& tensor = std::get<at::Tensor>(row.components[i]);
      if (tensor.sizes() == at::IntArrayRef(sizes)) continue;
      at::Tensor padded = at::full(sizes, value, tensor.options());
      at::Tensor corner = padded;
      for (std::int64_t d = 0; d < tensor.dim(); ++d) corner = corner.narrow(d, 0, tensor.size(d));
      corner.copy_(tensor);
      tensor = std::move(padded);
    }
  }

  void fix_sizes(std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& wanted, std::size_t i) const {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (wanted[d] < 0) continue;
      if (sizes[d] > wanted[d])
        throw DataLoss(errors::kShape, {.what = str("a row of component ", i, " is larger than its padded shape"),
                                        .where = where_,
                                        .seen = str("size ", sizes[d], " in dimension ", d, ", padded to ", wanted[d]),
                                        .help = "use -1 to pad to the longest row of the batch"});
      sizes[d] = wanted[d];
    }
  }

  PaddedBatchOptions options_;
  std::string where_;
};

ElementSpec padded_spec(ElementSpec spec, const PaddedBatchOptions& options, const BatchShape& shape) {
  for (std::size_t i = 0; spec.components && i < spec.components->size(); ++i) {
    ComponentSpec& component = (*spec.components)[i];
    if (component.kind == ComponentSpec::Kind::Tensor && !options.padded_shapes.empty() && options.padded_shapes[i])
      component.shape = PartialShape(*options.padded_shapes[i]);
  }
  return spec.batched(shape.known_rows());
}

}  // namespace

StagePtr make_padded_batch(StagePtr input, std::int64_t size, PaddedBatchOptions options) {
  const BatchShape shape{size, options.drop_remainder};
  const std::string text = "padded_batch" + options_text(shape);
  for (const auto& padded : options.padded_shapes) {
    if (!padded || std::ranges::all_of(*padded, [](std::int64_t dim) { return dim >= -1; })) continue;
    refuse_option(text, str("a padded shape must have sizes >= 0, or -1, got ", to_string(PartialShape(*padded))),
                  "give -1 to pad to the longest row of the batch");
  }
  require_fitting(options, input->element_spec(), text);
  return make_batching_stage(
      std::move(input), shape, "padded_batch",
      {.kind = "padded_batch",
       .text = text,
       .traits = {.elements = StageTraits::Elements::Padded},
       .spec = [=](const Stage& below) { return padded_spec(below.element_spec(), options, shape); },
       .iterate = over_input<PaddedBatchIterator>(shape, options, text)});
}

}  // namespace lockstep::data
