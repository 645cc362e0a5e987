#include "lockstep/data/files/parse_example_stage.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/one_to_one.h"

namespace lockstep::data {
namespace {

using Column = ExampleParser::Column;

at::ScalarType dtype_of(FeatureType type) { return type == FeatureType::Int64 ? at::kLong : at::kFloat; }

std::size_t component_count(const Column& column) { return column.variable ? 2 : 1; }

/// Rows of different lengths as one tensor, with zeros behind the shorter ones.
template <class T>
at::Tensor padded(const std::vector<T>& values, const std::vector<std::int64_t>& lengths, at::ScalarType dtype,
                  BufferPool& pool) {
  const std::int64_t longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
  at::Tensor result = pool.take({static_cast<std::int64_t>(lengths.size()), longest}, dtype);
  auto* to = result.mutable_data_ptr<T>();
  const T* from = values.data();
  for (const std::int64_t length : lengths) {
    std::copy(from, from + length, to);
    std::fill(to + length, to + longest, T{});
    from += length;
    to += longest;
  }
  return result;
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::ScalarType dtype) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(values.size())}, at::TensorOptions(dtype));
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<T>());
  return result;
}

/// Parses records into fresh components; keeps its lists between calls.
class Parsing {
 public:
  Parsing(std::shared_ptr<const ExampleParser> parser, const std::vector<std::size_t>& order)
      : parser_(std::move(parser)),
        order_(order),
        slots_(parser_->columns().size()),
        tensors_(slots_.size()),
        texts_(slots_.size()),
        variable_(slots_.size()) {}

  void parse_batch(const Strings& records, const ExampleParser::RowName& name_row, std::vector<Component>& out) {
    views_.assign(records.begin(), records.end());
    const auto rows = static_cast<std::int64_t>(views_.size());
    prepare(rows, true);
    parser_->parse_batch(views_, slots_, name_row);
    for (const std::size_t i : order_) {
      const Column& column = parser_->columns()[i];
      if (!column.variable) {
        if (column.type == FeatureType::Bytes) {
          out.emplace_back(Strings(std::vector<std::string>(texts_[i].begin(), texts_[i].end())));
        } else {
          out.emplace_back(std::move(tensors_[i]));
        }
        continue;
      }
      const VarLenValues& values = variable_[i];
      out.emplace_back(column.type == FeatureType::Int64 ? padded(values.ints, values.lengths, at::kLong, pool_)
                                                         : padded(values.floats, values.lengths, at::kFloat, pool_));
      out.emplace_back(tensor_of(values.lengths, at::kLong));
    }
  }

  void parse_one(const std::string& record, std::vector<Component>& out) {
    prepare(1, false);
    parser_->parse(record, slots_);
    for (const std::size_t i : order_) {
      const Column& column = parser_->columns()[i];
      if (!column.variable) {
        if (column.type != FeatureType::Bytes) {
          out.emplace_back(std::move(tensors_[i]));
        } else if (column.shape.empty()) {
          out.emplace_back(std::string(texts_[i].front()));
        } else {
          out.emplace_back(Strings(std::vector<std::string>(texts_[i].begin(), texts_[i].end())));
        }
        continue;
      }
      const VarLenValues& values = variable_[i];
      switch (column.type) {
        case FeatureType::Bytes:
          out.emplace_back(Strings(std::vector<std::string>(values.bytes.begin(), values.bytes.end())));
          break;
        case FeatureType::Float: out.emplace_back(tensor_of(values.floats, at::kFloat)); break;
        case FeatureType::Int64: out.emplace_back(tensor_of(values.ints, at::kLong)); break;
      }
      at::Tensor length = at::empty({}, at::TensorOptions(at::kLong));
      *length.mutable_data_ptr<std::int64_t>() = values.lengths.front();
      out.emplace_back(std::move(length));
    }
  }

 private:
  void prepare(std::int64_t rows, bool batched) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Column& column = parser_->columns()[i];
      FeatureSlot& slot = slots_[i];
      if (column.variable) {
        variable_[i].clear();
        slot.variable = &variable_[i];
      } else if (column.type == FeatureType::Bytes) {
        texts_[i].resize(static_cast<std::size_t>(rows * column.elements));
        slot.bytes = texts_[i].data();
      } else {
        shape_ = column.shape;
        if (batched) shape_.insert(shape_.begin(), rows);
        tensors_[i] = pool_.take(shape_, dtype_of(column.type));
        if (column.type == FeatureType::Int64) {
          slot.ints = tensors_[i].mutable_data_ptr<std::int64_t>();
        } else {
          slot.floats = tensors_[i].mutable_data_ptr<float>();
        }
      }
    }
  }

  std::shared_ptr<const ExampleParser> parser_;
  const std::vector<std::size_t>& order_;
  BufferPool pool_;
  std::vector<FeatureSlot> slots_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::vector<std::string_view>> texts_;
  std::vector<VarLenValues> variable_;
  std::vector<std::string_view> views_;
  std::vector<std::int64_t> shape_;
};

class ParseIterator final : public CountingIterator {
 public:
  ParseIterator(IteratorPtr input, std::shared_ptr<const ExampleParser> parser, std::vector<std::size_t> order,
                bool batched, SkeletonPtr skeleton, std::string where)
      : CountingIterator(std::move(input)),
        order_(std::move(order)),
        parsing_(std::move(parser), order_),
        batched_(batched),
        skeleton_(std::move(skeleton)),
        where_(std::move(where)) {}

  bool next(Element& element) override {
    if (!next_input(records_)) return false;
    const std::int64_t number = count_ - 1;
    element.components.clear();
    element.skeleton = skeleton_;
    try {
      if (batched_) {
        const auto* records = records_.size() == 1 ? std::get_if<Strings>(&records_.components.front()) : nullptr;
        if (records == nullptr) wrong_input("batches of records");
        parsing_.parse_batch(
            *records, [&](std::size_t row) { return place(number, static_cast<std::int64_t>(row)); },
            element.components);
      } else {
        if (records_.size() != 1) wrong_input("records");
        parsing_.parse_one(records_.bytes(0), element.components);
      }
    } catch (Error& error) {
      if (!batched_) error.add_where(place(number, 0));
      error.add_where(where_);
      throw;
    }
    return true;
  }

 private:
  /// Of a record: its file, or if that is not known its number.
  std::string place(std::int64_t number, std::int64_t row) const {
    std::string origin = input_->origin(number, row);
    if (!origin.empty()) return origin;
    return batched_ ? str("row ", row, " of batch ", number) : str("element ", number);
  }

  [[noreturn]] void wrong_input(const char* wanted) const {
    throw InvalidArgument(errors::kStructure, {.what = str("parse_example takes ", wanted, " as byte strings"),
                                               .seen = describe(records_)});
  }

  std::vector<std::size_t> order_;
  Parsing parsing_;
  bool batched_;
  SkeletonPtr skeleton_;
  std::string where_;
  Element records_;
};

[[noreturn]] void wrong_target(const std::string& what, const std::string& help) {
  throw InvalidArgument(errors::kFeature, {.what = what, .where = "parse_example", .help = help});
}

}  // namespace

ParseExampleStage::ParseExampleStage(StagePtr input, const FeatureSpec& spec, std::vector<std::string> names,
                                     ParseTarget target)
    : StageOf({std::move(input)}), parser_(std::make_shared<ExampleParser>(spec)), target_(target) {
  const auto columns = parser_->columns();
  if (names.empty()) {
    if (!target.by_name && columns.size() > 1)
      wrong_target("the order of the features is not known", "name them in the order of the result's fields");
    for (const Column& column : columns) names.push_back(column.name);
  }
  std::size_t components = 0;
  Skeleton skeleton;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(columns, name, &Column::name);
    if (found == columns.end())
      wrong_target(str("no feature '", name, "' is described"), "describe it, or leave it out");
    if (std::ranges::count(names, name) > 1) wrong_target(str("feature '", name, "' is named twice"), "name it once");
    order_.push_back(static_cast<std::size_t>(found - columns.begin()));
    components += component_count(*found);
    skeleton.marks.emplace_back(name);
    if (found->variable) skeleton.marks.emplace_back(name + ".lengths");
    const bool many_strings = found->type == FeatureType::Bytes && (found->variable || !found->shape.empty());
    if (target.batched && many_strings)
      wrong_target(str("feature '", name, "' has several byte strings per record, of which a batch cannot be made"),
                   "parse the records before they are batched");
    if (target.by_name && found->type == FeatureType::Bytes)
      wrong_target(str("feature '", name, "' is bytes, which do not fit into a map of tensors"),
                   "name a result type with a std::string in its place, and the order of the features");
  }
  if (order_.size() != columns.size())
    wrong_target("a feature is described but not asked for", "leave it out of the description");
  if (target.leaves && *target.leaves != components)
    wrong_target(str("the result has ", counted(static_cast<long long>(*target.leaves), "field"),
                     ", the features need ", components),
                 "a fixed feature needs one field, a variable one needs two: its values and their number");
  if (target.by_name) {
    for (const std::string& name : names) {
      if (std::ranges::count(skeleton.marks, decltype(skeleton.marks)::value_type(name)) > 1)
        wrong_target(str("the map would have two fields with the name '", name,
                         "': the feature, and how many values a variable one has"),
                     "name a result type of your own, and the order of the features");
    }
    skeleton.marks.insert(skeleton.marks.begin(), static_cast<std::int64_t>(components));
    skeleton_ = std::make_shared<const Skeleton>(std::move(skeleton));
  }
}

std::string ParseExampleStage::describe() const {
  std::string names;
  for (const std::size_t i : order_) names += (names.empty() ? "" : ", ") + parser_->columns()[i].name;
  return str(kind(), '(', names, ')');
}

ElementSpec ParseExampleStage::element_spec() const {
  std::int64_t rows = PartialShape::kUnknown;
  if (const auto above = input()->element_spec(); above.components && above.components->size() == 1) {
    const PartialShape& shape = above.components->front().shape;
    if (target_.batched && shape.has_rank() && shape.rank() == 1) rows = shape.dim(0);
  }
  const auto shaped = [&](std::vector<std::int64_t> shape) {
    if (target_.batched) shape.insert(shape.begin(), rows);
    return PartialShape(std::move(shape));
  };
  std::vector<ComponentSpec> components;
  for (const std::size_t i : order_) {
    const Column& column = parser_->columns()[i];
    const auto shape = shaped(column.variable ? std::vector<std::int64_t>{PartialShape::kUnknown} : column.shape);
    components.push_back(column.type == FeatureType::Bytes ? ComponentSpec::bytes(shape)
                                                           : ComponentSpec::tensor(dtype_of(column.type), shape));
    if (column.variable) components.push_back(ComponentSpec::tensor(at::kLong, shaped({})));
  }
  return {std::move(components), skeleton_};
}

IteratorPtr ParseExampleStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<ParseIterator>(input()->iterate(context), parser_, order_, target_.batched, skeleton_,
                                         describe());
}

}  // namespace lockstep::data
