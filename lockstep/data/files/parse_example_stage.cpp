#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/format/example_parser.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/data/iterators.h"

namespace lockstep::data {
namespace {

using Column = ExampleParser::Column;

at::ScalarType dtype_of(FeatureType type) { return type == FeatureType::Int64 ? at::kLong : at::kFloat; }

/// The columns to parse, and the element they form. Shared by a stage and its iterators.
struct ParsePlan {
  ExampleParser parser;
  bool batched = false;            // the input has batches of records
  std::vector<std::size_t> order;  // the parser's columns in the result's order
  SkeletonPtr skeleton;            // for a map
};

class ParseIterator final : public CountingIterator {
 public:
  ParseIterator(IteratorPtr input, std::shared_ptr<const ParsePlan> plan, std::string where)
      : CountingIterator(std::move(input)),
        plan_(std::move(plan)),
        where_(std::move(where)),
        slots_(plan_->parser.columns().size()),
        tensors_(slots_.size()),
        values_(slots_.size()) {}

  bool next(Element& element) override {
    const std::int64_t number = count_++;  // counts even if it fails
    if (!input_->next(records_)) return false;
    try {
      take_records();
      prepare();
      plan_->parser.parse_batch(views_, slots_,
                                [&](std::size_t row) { return place(number, static_cast<std::int64_t>(row)); });
      element.skeleton = plan_->skeleton;
      element.components.clear();
      for (const std::size_t i : plan_->order) append_column(i, element.components);
    } catch (Error& error) {
      error.add_where(where_);
      throw;
    }
    return true;
  }

 private:
  void take_records() {
    const Component* records = records_.size() == 1 ? &records_.components.front() : nullptr;
    const auto* batch = records ? std::get_if<Strings>(records) : nullptr;
    const auto* single = records ? std::get_if<std::string>(records) : nullptr;
    if (plan_->batched ? batch == nullptr : single == nullptr) {
      throw InvalidArgument(errors::kStructure,
                            {.what = str("parse_example takes ", plan_->batched ? "batches of records" : "records",
                                         " as byte strings, got ", describe(records_)),
                             .help = "parse before other components are added: parse_example(tfrecord_dataset(...))"});
    }
    if (batch) {
      views_.assign(batch->begin(), batch->end());
    } else {
      views_.assign(1, *single);
    }
  }

  /// Allocates this many values per record.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType dtype) {
    if (!plan_->batched) return pool_.take(shape, dtype);
    std::vector<std::int64_t> of_batch{std::ssize(views_)};
    of_batch.insert(of_batch.end(), shape.begin(), shape.end());
    return pool_.take(of_batch, dtype);
  }

  /// Makes room for the values of all columns.
  void prepare() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Column& column = plan_->parser.columns()[i];
      FeatureSlot& slot = slots_[i];
      values_[i].clear();
      if (column.variable) {
        slot.variable = &values_[i];
      } else if (column.type == FeatureType::Bytes) {
        values_[i].bytes.resize(views_.size() * static_cast<std::size_t>(column.elements));
        slot.bytes = values_[i].bytes.data();
      } else {
        tensors_[i] = take(column.shape, dtype_of(column.type));
        if (column.type == FeatureType::Int64) {
          slot.ints = tensors_[i].mutable_data_ptr<std::int64_t>();
        } else {
          slot.floats = tensors_[i].mutable_data_ptr<float>();
        }
      }
    }
  }

  /// Appends the parsed values of a column to `out`.
  void append_column(std::size_t i, std::vector<Component>& out) {
    const Column& column = plan_->parser.columns()[i];
    const VarLenValues& values = values_[i];
    if (column.type == FeatureType::Bytes) {
      const bool is_one = !plan_->batched && !column.variable && column.shape.empty();
      out.push_back(is_one ? Component(std::string(values.bytes.front()))
                           : Strings(std::vector<std::string>(values.bytes.begin(), values.bytes.end())));
    } else if (!column.variable) {
      out.emplace_back(std::move(tensors_[i]));
    } else {
      out.emplace_back(column.type == FeatureType::Int64 ? padded(values.ints, values.lengths, at::kLong)
                                                         : padded(values.floats, values.lengths, at::kFloat));
    }
    if (!column.variable) return;
    const at::Tensor lengths = take({}, at::kLong);
    std::ranges::copy(values.lengths, lengths.mutable_data_ptr<std::int64_t>());
    out.emplace_back(lengths);
  }

  /// Records of different lengths as rows, the shorter ones padded with zeros.
  template <class T>
  at::Tensor padded(const std::vector<T>& values, const std::vector<std::int64_t>& lengths, at::ScalarType dtype) {
    const std::int64_t longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
    at::Tensor result = take({longest}, dtype);
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

  /// The place of a record: its file or, if unknown, its number.
  std::string place(std::int64_t number, std::int64_t row) const {
    std::string origin = input_->origin(number, row);
    if (!origin.empty()) return origin;
    return plan_->batched ? str("row ", row, " of batch ", number) : str("element ", number);
  }

  std::shared_ptr<const ParsePlan> plan_;
  std::string where_;
  BufferPool pool_;
  Element records_;

  // For the current records; the memory is reused for the next ones.
  std::vector<std::string_view> views_;
  std::vector<FeatureSlot> slots_;    // one per column of the parser, like the following
  std::vector<at::Tensor> tensors_;   // numbers of fixed features
  std::vector<VarLenValues> values_;  // all other features
};

ElementSpec parsed_spec(const ElementSpec& above, const ParsePlan& plan) {
  const bool is_one = above.components && above.components->size() == 1;
  const std::int64_t rows = is_one ? above.components->front().shape.rows() : PartialShape::kUnknown;
  const auto shaped = [&](const PartialShape& shape) { return plan.batched ? shape.with_front(rows) : shape; };
  std::vector<ComponentSpec> components;
  for (const std::size_t i : plan.order) {
    const Column& column = plan.parser.columns()[i];
    const auto shape = shaped(column.variable ? PartialShape({PartialShape::kUnknown}) : PartialShape(column.shape));
    components.push_back(column.type == FeatureType::Bytes ? ComponentSpec::bytes(shape)
                                                           : ComponentSpec::tensor(dtype_of(column.type), shape));
    if (column.variable) components.push_back(ComponentSpec::tensor(at::kLong, shaped(PartialShape({}))));
  }
  return {std::move(components), plan.skeleton};
}

[[noreturn]] void refuse(const std::string& what, const std::string& help) {
  throw InvalidArgument(errors::kFeature, {.what = what, .where = "parse_example", .help = help});
}

/// Throws if the feature cannot be a part of the result.
void require_possible(const Column& column, bool batched, bool by_name) {
  if (column.type != FeatureType::Bytes) return;
  if (batched && (column.variable || !column.shape.empty()))
    refuse(str("feature '", column.name, "' has several byte strings per record, which cannot be batched"),
           "parse the records before they are batched");
  if (by_name)
    refuse(str("feature '", column.name, "' is bytes, which do not fit into a map of tensors"),
           "name a result type with a std::string in its place, and the order of the features");
}

/// The keys of a map of these columns, which must be distinct.
Skeleton map_keys(std::span<const Column> columns, const std::vector<std::size_t>& order) {
  std::vector<std::string> keys;
  for (const std::size_t i : order) {
    keys.push_back(columns[i].name);
    if (columns[i].variable) keys.push_back(columns[i].name + ".lengths");
  }
  Skeleton skeleton;
  skeleton.marks.emplace_back(static_cast<std::int64_t>(keys.size()));
  for (const std::string& key : keys) {
    if (std::ranges::count(keys, key) > 1)
      refuse(str("the map would have two fields with the name '", key,
                 "': a feature, and the number of values of a variable one"),
             "name a result type of your own, and the order of the features");
    skeleton.marks.emplace_back(key);
  }
  return skeleton;
}

}  // namespace

StagePtr make_parse_example_stage(StagePtr records, bool batched, const FeatureSpec& spec,
                                  std::vector<std::string> names, const ElementSpec& result) {
  auto plan = std::make_shared<ParsePlan>(ParsePlan{.parser = ExampleParser(spec), .batched = batched});
  const auto columns = plan->parser.columns();
  const bool by_name = !result.is_known();
  if (names.empty()) {
    if (!by_name && columns.size() > 1)
      refuse("the order of the features is unknown", "name them in the order of the result's fields");
    for (const Column& column : columns) names.push_back(column.name);
  }
  std::size_t components = 0;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(columns, name, &Column::name);
    if (found == columns.end())
      refuse(str("feature '", name, "' is not in the FeatureSpec"), "add it there, or leave the name out");
    if (std::ranges::count(names, name) > 1) refuse(str("feature '", name, "' is named twice"), "name it once");
    require_possible(*found, batched, by_name);
    plan->order.push_back(static_cast<std::size_t>(found - columns.begin()));
    components += found->variable ? 2 : 1;
  }
  if (plan->order.size() != columns.size())
    refuse("a feature of the FeatureSpec is not named", "name it, or leave it out of the FeatureSpec");
  if (result.is_known() && result.components->size() != components)
    refuse(str("the result has ", counted(static_cast<long long>(result.components->size()), "field"),
               ", the features need ", components),
           "a fixed feature needs one field, a variable one needs two: its values and their number");
  if (by_name) plan->skeleton = std::make_shared<const Skeleton>(map_keys(columns, plan->order));
  std::string text = str("parse_example(", listed(names), ')');
  return make_stage({std::move(records)},
                    {.kind = "parse_example",
                     .text = text,
                     .traits = StageTraits::passing_over(StageTraits::Elements::Rewritten),
                     .spec = [plan](const Stage& below) { return parsed_spec(below.element_spec(), *plan); },
                     .iterate = over_input<ParseIterator>(std::shared_ptr<const ParsePlan>(plan), text)});
}

}  // namespace lockstep::data
