#include "lockstep/data/format/example_parser.h"

#include <algorithm>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/data/format/mapped_file.h"
#include "lockstep/data/format/wire.h"

namespace lockstep::data {
namespace {

using Column = ExampleParser::Column;

std::string shape_text(const std::vector<std::int64_t>& shape) { return str("[", listed(shape), "]"); }

[[noreturn]] void bad_spec(const std::string& name, const std::string& what) {
  throw InvalidArgument(errors::kFeature, {.what = str("feature '", name, "' cannot be described like this: ", what),
                                           .help = "correct its FixedLenFeature"});
}

std::int64_t element_count(const std::string& name, const std::vector<std::int64_t>& shape) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; }))
    bad_spec(name, str("extents of its shape must be >= 0, got ", shape_text(shape)));
  const auto count = array_bytes(shape, 1);
  if (!count || *count > kMost) bad_spec(name, str("shape ", shape_text(shape), " is too large"));
  return static_cast<std::int64_t>(*count);
}

FeatureValues filled_default(const std::string& name, const FixedLenFeature& feature, std::int64_t elements) {
  FeatureValues values = *feature.default_value;
  if (values.index() != static_cast<std::size_t>(feature.type)) {
    bad_spec(name, str("its values are ", to_string(feature.type), ", its default is ",
                       to_string(static_cast<FeatureType>(values.index()))));
  }
  std::visit(
      [&](auto& list) {
        if (list.size() == 1) list.resize(static_cast<std::size_t>(elements), decltype(list[0])(list[0]));
        if (list.size() != static_cast<std::size_t>(elements)) {
          bad_spec(name,
                   str("shape ", shape_text(feature.shape), " needs ", elements, " default values, got ", list.size()));
        }
      },
      values);
  return values;
}

Column make_column(const std::string& name, const FixedLenFeature& feature) {
  Column column{.name = name, .type = feature.type, .shape = feature.shape};
  column.elements = element_count(name, feature.shape);
  if (feature.default_value) column.default_values = filled_default(name, feature, column.elements);
  return column;
}

Column make_column(const std::string& name, const VarLenFeature& feature) {
  return {.name = name, .type = feature.type, .variable = true};
}

[[noreturn]] void does_not_fit(const Column& column, const std::string& what, const std::string& seen) {
  throw InvalidArgument(errors::kFeature,
                        {.what = str("feature ", in_quotes(column.name), ' ', what),
                         .where = str("feature ", in_quotes(column.name)),
                         .seen = seen,
                         .help = "compare the feature description with how the records were written"});
}

[[noreturn]] void wrong_count(const Column& column, std::int64_t seen) {
  does_not_fit(column, "does not have as many values as its shape",
               str("shape ", shape_text(column.shape), " needs ", column.elements, ", the record has ",
                   seen > column.elements ? "more" : str(seen)));
}

std::string_view* target_of(const FeatureSlot& slot, const std::vector<std::string>&) { return slot.bytes; }
float* target_of(const FeatureSlot& slot, const std::vector<float>&) { return slot.floats; }
std::int64_t* target_of(const FeatureSlot& slot, const std::vector<std::int64_t>&) { return slot.ints; }

void use_default(const Column& column, const FeatureSlot& slot, std::int64_t offset) {
  if (!column.default_values) {
    does_not_fit(column, "is required but missing", str("type ", to_string(column.type), ", no default"));
  }
  std::visit([&](const auto& values) { std::copy(values.begin(), values.end(), target_of(slot, values) + offset); },
             *column.default_values);
}

/// Never writes more values than the column has elements.
template <class T>
void read_fixed(std::string_view list, std::string_view record, const Column& column, T* out) {
  std::int64_t count = 0;
  wire::read_values<T>(list, record, [&](std::size_t more) {
    if (static_cast<std::int64_t>(more) > column.elements - count) wrong_count(column, column.elements + 1);
    return out + std::exchange(count, count + static_cast<std::int64_t>(more));
  });
  if (count != column.elements) wrong_count(column, count);
}

// Records from a shuffle are scattered in memory: prefetch the next one while this one is parsed.
void fetch_ahead(std::string_view record) {
  constexpr std::size_t kMost = 8192;
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < std::min(record.size(), kMost); at += kLine) __builtin_prefetch(record.data() + at);
}

void check_slots(std::span<const Column> columns, std::span<const FeatureSlot> slots) {
  bool fits = columns.size() == slots.size();
  for (std::size_t i = 0; fits && i < columns.size(); ++i) {
    const Column& column = columns[i];
    const auto has_room = [&](auto fixed, auto) { return slots[i].*fixed != nullptr || column.elements == 0; };
    fits = column.variable ? slots[i].variable != nullptr : with_members(column.type, has_room);
  }
  if (fits) return;
  throw InvalidArgument(errors::kFeature,
                        {.what = "every feature needs a slot of its kind",
                         .seen = str(columns.size(), " features, ", slots.size(), " slots"),
                         .help = "give one FeatureSlot per column of the parser, in the order of columns()"});
}

}  // namespace

void VarLenValues::clear() {
  bytes.clear();
  floats.clear();
  ints.clear();
  lengths.clear();
}

ExampleParser::ExampleParser(const FeatureSpec& spec) {
  columns_.reserve(spec.size());
  for (const auto& entry : spec) {
    columns_.push_back(std::visit([&](const auto& kind) { return make_column(entry.first, kind); }, entry.second));
  }
}

// Records usually have their features in the same order, so try the column after the last one first.
std::size_t ExampleParser::find_column(std::string_view name, std::size_t guess) const {
  if (guess < columns_.size() && columns_[guess].name == name) return guess;
  const auto found = std::ranges::lower_bound(columns_, name, {}, &Column::name);
  if (found == columns_.end() || found->name != name) return columns_.size();
  return static_cast<std::size_t>(found - columns_.begin());
}

void ExampleParser::parse_row(std::string_view record, std::span<const FeatureSlot> slots, std::int64_t row) const {
  // The record's features by column. Kept between calls to avoid allocation.
  thread_local std::vector<std::string_view> features;
  features.assign(columns_.size(), {});
  std::size_t guess = 0;
  wire::for_each_feature(record, [&](std::string_view name, std::string_view feature) {
    const std::size_t column = find_column(name, guess);
    if (column == columns_.size()) return;
    features[column] = feature;  // the last of several wins
    guess = column + 1;
  });
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    wire::FeatureList list;
    try {
      list = wire::read_feature(features[i], record);
      if (list.type && *list.type != column.type) {
        does_not_fit(column, "is not of the type asked for",
                     str("asked for ", to_string(column.type), ", the record has ", to_string(*list.type)));
      }
      const FeatureSlot& slot = slots[i];
      with_members(column.type, [&](auto fixed, auto variable) {
        if (column.variable) {
          slot.variable->lengths.push_back(wire::append_values(list.list, record, slot.variable->*variable));
        } else if (list.type) {
          read_fixed(list.list, record, column, slot.*fixed + row * column.elements);
        } else {
          use_default(column, slot, row * column.elements);
        }
      });
    } catch (DataLoss& error) {
      error.add_where(str("feature ", in_quotes(column.name)));
      throw;
    }
  }
}

void ExampleParser::parse(std::string_view record, std::span<const FeatureSlot> slots) const {
  check_slots(columns_, slots);
  parse_row(record, slots, 0);
}

void ExampleParser::parse_batch(std::span<const std::string_view> records, std::span<const FeatureSlot> slots,
                                const RowName& name_row) const {
  if (records.empty()) return;  // slots without room have no address
  check_slots(columns_, slots);
  for (std::size_t row = 0; row < records.size(); ++row) {
    if (row + 1 < records.size()) fetch_ahead(records[row + 1]);
    try {
      parse_row(records[row], slots, static_cast<std::int64_t>(row));
    } catch (Error& error) {
      error.add_where(name_row ? name_row(row) : str("row ", row, " of the batch"));
      throw;
    }
  }
}

}  // namespace lockstep::data
