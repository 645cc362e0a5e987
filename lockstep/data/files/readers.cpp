#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/files/reader_stage.h"
#include "lockstep/data/format/csv.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/fixed_length.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/data/format/text_lines.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

// The file formats as pipeline sources.
namespace lockstep::data {
namespace {

/// The nonempty parts of a description, separated by commas.
std::string described(std::vector<std::string> parts) {
  std::erase(parts, "");
  return listed(parts);
}

/// "at most 1000 bytes", unless the limit is the default.
std::string limit(std::uint64_t bytes, std::uint64_t usual) {
  return bytes == usual ? std::string() : str("at most ", bytes, " bytes");
}

/// A format whose records are byte strings. `choices`: every option except the compression that affects the records.
template <class Reader, class Options>
Dataset<std::string> read_bytes(const char* kind, std::vector<std::string> choices, const Options& options,
                                const FileNames& files) {
  choices.emplace_back(to_string(options.compression));
  return Dataset<std::string>(
      make_file_reader({.kind = kind,
                        .detail = described(choices),
                        .identity = described(choices),
                        .open = [options](const std::string& path) { return std::make_unique<Reader>(path, options); },
                        .spec = {{{ComponentSpec::bytes()}}}},
                       files.stage()));
}

at::ScalarType dtype_of(CsvType type) {
  switch (type) {
    case CsvType::Int32: return at::kInt;
    case CsvType::Int64: return at::kLong;
    case CsvType::Float32: return at::kFloat;
    default: return at::kDouble;
  }
}

Component component_of(const CsvValue& value) {
  return std::visit(
      [&](const auto& content) -> Component {
        using Content = std::remove_cvref_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, std::string_view>) {
          return std::string(content);
        } else {
          at::Tensor scalar = at::empty({}, at::TensorOptions(dtype_of(static_cast<CsvType>(value.index()))));
          *static_cast<Content*>(scalar.mutable_data_ptr()) = content;
          return scalar;
        }
      },
      value);
}

/// The text preceded by its length: for identities.
std::string exactly(const std::string& text) { return str(text.size(), data::in_quotes(text, text.size())); }

ComponentSpec spec_of(CsvType type) {
  if (type == CsvType::String) return ComponentSpec::bytes();
  return ComponentSpec::tensor(dtype_of(type), PartialShape(std::vector<std::int64_t>{}));
}

/// All options that affect the records.
std::string csv_identity(const CsvOptions& options) {
  const CsvOptions usual;
  std::vector<std::string> parts;
  for (const CsvColumn& column : options.columns) {
    std::string text(to_string(column.type));
    if (!column.name.empty()) text += str(" ", exactly(column.name));
    if (column.index >= 0) text += str(" at ", column.index);
    if (column.default_value) text += str(" or ", exactly(*column.default_value));
    parts.push_back(std::move(text));
  }
  if (!options.header) parts.emplace_back("no header");
  if (options.delimiter != usual.delimiter) parts.push_back("delimiter " + exactly(std::string(1, options.delimiter)));
  if (!options.quotes) parts.emplace_back("no quotes");
  if (!options.na_value.empty()) parts.push_back("na " + exactly(options.na_value));
  parts.push_back(limit(options.max_record_bytes, usual.max_record_bytes));
  parts.emplace_back(to_string(options.compression));
  return described(parts);
}

/// Each leaf of the user's type must be possible for its column: byte strings are neither tensors nor numbers.
void require_fitting_columns(const Stage& names, const CsvOptions& options, const ElementSpec& result) {
  const std::string files = describe_files(names);
  const std::string where = str("csv_dataset", files.empty() ? "" : " of " + files);
  if (options.columns.empty()) {
    refuse_option(where, "csv_dataset must know its columns and their types", "name them in CsvOptions::columns");
  }
  if (result.components && result.components->size() != options.columns.size()) {
    throw InvalidArgument(
        errors::kStructure,
        {.what = str("the dataset's type must have one component per column, got ", result.components->size(), " for ",
                     counted(static_cast<long long>(options.columns.size()), "column")),
         .where = where,
         .help = "name as many columns in CsvOptions::columns as the type has components"});
  }
  using Kind = ComponentSpec::Kind;
  for (std::size_t i = 0; i < options.columns.size(); ++i) {
    const CsvColumn& column = options.columns[i];
    const ComponentSpec has = spec_of(column.type);
    const ComponentSpec wanted = result.components ? (*result.components)[i] : ComponentSpec{Kind::Tensor};
    const bool is_batch = wanted.kind == Kind::Bytes && wanted.shape != has.shape;
    if (wanted.kind == Kind::Unknown || (has.kind == wanted.kind && !is_batch)) continue;
    throw InvalidArgument(errors::kCsv,
                          {.what = str("column ", column.index >= 0 ? column.index : static_cast<int>(i),
                                       column.name.empty() ? "" : " " + data::in_quotes(column.name), " is read as ",
                                       to_string(column.type), ", but component ", i, " of the dataset's type is ",
                                       is_batch                     ? "a batch of byte strings"
                                       : wanted.kind == Kind::Bytes ? "a byte string"
                                                                    : "a tensor or a number"),
                           .where = where,
                           .seen = str(to_string(has), " for ", to_string(wanted)),
                           .help = "give the column a number's type, or make the component a std::string"});
  }
}

}  // namespace

StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, const ElementSpec& result) {
  require_fitting_columns(*names, options, result);
  require_valid(options);
  std::vector<ComponentSpec> components;
  std::vector<std::string> shown;
  for (const CsvColumn& column : options.columns) {
    components.push_back(spec_of(column.type));
    shown.push_back(str(column.name.empty() ? "" : column.name + " ", to_string(column.type)));
  }
  shown.emplace_back(to_string(options.compression));
  SkeletonPtr skeleton = result.skeleton;
  if (!result.components)
    skeleton = std::make_shared<const Skeleton>(Skeleton{{static_cast<std::int64_t>(components.size())}});
  return make_file_reader(
      {.kind = "csv",
       .detail = described(shown),
       .identity = csv_identity(options),
       .open = [options](const std::string& path) { return std::make_unique<CsvReader>(path, options); },
       .spec = {std::move(components), skeleton},
       .to_element =
           [skeleton](const RecordReader& reader, Element& element) {
             element.skeleton = skeleton;
             element.components.clear();
             for (const CsvValue& value : static_cast<const CsvReader&>(reader).values())
               element.components.push_back(component_of(value));
           }},
      std::move(names));
}

FileNames::FileNames(const char* file) : FileNames(std::string(file)) {}
FileNames::FileNames(std::string file) : FileNames(std::vector<std::string>{std::move(file)}) {}
FileNames::FileNames(std::vector<std::string> files) : stage_(from_tensor_slices(std::move(files)).stage()) {}
FileNames::FileNames(std::initializer_list<std::string> files) : FileNames(std::vector<std::string>(files)) {}
FileNames::FileNames(const Dataset<std::string>& files) : stage_(files.stage()) {}

Dataset<std::string> list_files(const std::vector<std::string>& patterns, const ListFilesOptions& options) {
  const Strings names(matching_files(patterns));
  const StagePtr slices = make_slices(Element({Component(names)}));
  const Dataset<std::string> files(
      make_rows({.kind = "list_files", .detail = listed(patterns), .contents = summary(names), .is_list = true},
                slices->row_source(), slices->element_spec()));
  if (!options.shuffle) return files;
  return files.shuffle(files.cardinality().value(), {.seed = options.seed});
}

Dataset<std::string> list_files(std::initializer_list<std::string> patterns, const ListFilesOptions& options) {
  return list_files(std::vector<std::string>(patterns), options);
}

Dataset<std::string> list_files(const std::string& pattern, const ListFilesOptions& options) {
  return list_files(std::vector<std::string>{pattern}, options);
}

Dataset<std::string> tfrecord_dataset(const FileNames& files, const TFRecordOptions& options) {
  return read_bytes<TFRecordReader>("tfrecord",
                                    {options.on_damage == OnDamage::Skip ? "skip damaged" : "",
                                     limit(options.max_record_bytes, TFRecordOptions().max_record_bytes)},
                                    options, files);
}

Dataset<std::string> text_line_dataset(const FileNames& files, const TextLineOptions& options) {
  return read_bytes<TextLineReader>("text_line", {limit(options.max_line_bytes, TextLineOptions().max_line_bytes)},
                                    options, files);
}

Dataset<std::string> fixed_length_record_dataset(const FileNames& files, const FixedLengthOptions& options) {
  require_valid(options);
  return read_bytes<FixedLengthReader>("fixed_length_record",
                                       {counted(static_cast<long long>(options.record_bytes), "byte"),
                                        options.header_bytes > 0 ? str("header ", options.header_bytes) : "",
                                        options.footer_bytes > 0 ? str("footer ", options.footer_bytes) : ""},
                                       options, files);
}

}  // namespace lockstep::data
