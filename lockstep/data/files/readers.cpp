#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/files/reader_stage.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/list_files.h"
#include "lockstep/data/stages/stages.h"

// The file formats as sources of a pipeline.
namespace lockstep::data {
namespace {

/// Puts bytes into an element of one component, using the memory of the string that is there.
void set_bytes(Element& element, std::string_view bytes) {
  element.skeleton = nullptr;
  if (element.components.size() == 1) {
    if (auto* text = std::get_if<std::string>(&element.components.front())) {
      text->assign(bytes);
      return;
    }
  }
  element.components.clear();
  element.components.emplace_back(std::string(bytes));
}

/// Parts of a description, with a comma between them.
class Parts {
 public:
  Parts& add(const std::string& part) {
    if (!part.empty()) text_ += (text_.empty() ? "" : ", ") + part;
    return *this;
  }
  Parts& add_if(bool condition, const std::string& part) { return condition ? add(part) : *this; }
  Parts& add(Compression compression) { return add_if(compression != Compression::None, str(to_string(compression))); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

ElementSpec one_string() { return {{{ComponentSpec::bytes()}}}; }

/// What all formats share; `Reader` reads one file of a format.
template <class Reader>
class OpenReader : public FileReader {
 public:
  template <class Options>
  OpenReader(const std::string& path, const Options& options) : reader_(path, options) {}

  void skip_until(std::int64_t end, std::int64_t& number) override {
    while (number < end && reader_.skip(1) == 1) ++number;
  }
  RecordPosition position() const override { return reader_.position(); }
  void restore(const RecordPosition& position) override { reader_.restore(position); }
  bool pass_over() override { return false; }

 protected:
  Reader reader_;
};

/// A format whose records are byte strings.
template <class Reader, std::string_view (Reader::*kRecord)() const>
class BytesFile : public OpenReader<Reader> {
 public:
  using OpenReader<Reader>::OpenReader;

  bool next(Element& element) override {
    if (!this->reader_.next()) return false;
    set_bytes(element, (this->reader_.*kRecord)());
    return true;
  }
};

using TextFile = BytesFile<TextLineReader, &TextLineReader::line>;

class FixedLengthFile final : public BytesFile<FixedLengthReader, &FixedLengthReader::record> {
 public:
  FixedLengthFile(const std::string& path, const FixedLengthOptions& options)
      : BytesFile(path, options), seeks_(options.compression == Compression::None) {}

  void skip_until(std::int64_t end, std::int64_t& number) override {
    if (!seeks_) return BytesFile::skip_until(end, number);
    number += static_cast<std::int64_t>(reader_.skip(static_cast<std::uint64_t>(end - number)));
  }

 private:
  bool seeks_;  // then no record on the way can fail
};

class TFRecordFile final : public BytesFile<TFRecordReader, &TFRecordReader::record> {
 public:
  using BytesFile::BytesFile;
  TFRecordFile(const TFRecordFile&) = delete;
  TFRecordFile& operator=(const TFRecordFile&) = delete;
  ~TFRecordFile() override {
    if (reader_.damaged() > 0 && has_read_) {
      log_warning(str(reader_.path(), ": left out ",
                      counted(static_cast<long long>(reader_.damaged()), "damaged record"), "; the last:\n",
                      reader_.last_damage()));
    }
  }

  bool next(Element& element) override {
    has_read_ = true;
    return BytesFile::next(element);
  }
  bool pass_over() override { return reader_.skip(1) == 1; }  // if only the record's bytes are damaged

 private:
  bool has_read_ = false;  // not opened only to look for a place
};

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

class CsvFile final : public OpenReader<CsvReader> {
 public:
  CsvFile(const std::string& path, const CsvOptions& options, SkeletonPtr skeleton)
      : OpenReader(path, options), skeleton_(std::move(skeleton)) {}
  bool next(Element& element) override {
    if (!reader_.next()) return false;
    element.skeleton = skeleton_;
    element.components.clear();
    for (const CsvValue& value : reader_.values()) element.components.push_back(component_of(value));
    return true;
  }
  bool pass_over() override { return reader_.pass_over(); }

 private:
  SkeletonPtr skeleton_;
};

/// The text as it is, with a number in front that tells where it ends: for identities.
std::string exactly(const std::string& text) { return str(text.size(), data::quoted(text, text.size())); }

ComponentSpec spec_of(CsvType type) {
  if (type == CsvType::String) return ComponentSpec::bytes();
  return ComponentSpec::tensor(dtype_of(type), PartialShape(std::vector<std::int64_t>{}));
}

/// Everything in the options that decides the records.
std::string csv_identity(const CsvOptions& options) {
  const CsvOptions usual;
  Parts parts;
  for (const CsvColumn& column : options.columns) {
    std::string text(to_string(column.type));
    if (!column.name.empty()) text += str(" ", exactly(column.name));
    if (column.index >= 0) text += str(" at ", column.index);
    if (column.default_value) text += str(" or ", exactly(*column.default_value));
    parts.add(text);
  }
  parts.add_if(!options.header, "no header");
  parts.add_if(options.delimiter != usual.delimiter, str("delimiter ", exactly(std::string(1, options.delimiter))));
  parts.add_if(!options.quotes, "no quotes");
  parts.add_if(!options.na_value.empty(), str("na ", exactly(options.na_value)));
  parts.add_if(options.max_record_bytes != usual.max_record_bytes, str("at most ", options.max_record_bytes, " bytes"));
  return parts.add(options.compression).text();
}

/// What the user's type says of a leaf must be possible for its column: byte strings are no tensors or numbers.
void require_fitting_columns(const Stage& names, const CsvOptions& options, const std::vector<ComponentSpec>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const CsvColumn& column = options.columns.at(i);
    const ComponentSpec has = spec_of(column.type);
    const bool is_batch = wanted[i].kind == ComponentSpec::Kind::Bytes && wanted[i].shape != has.shape;
    if (has.kind == wanted[i].kind && !is_batch) continue;
    const std::string files = describe_files(names);
    throw InvalidArgument(errors::kCsv,
                          {.what = str("column ", column.index >= 0 ? column.index : static_cast<int>(i),
                                       column.name.empty() ? "" : " " + data::quoted(column.name), " is read as ",
                                       to_string(column.type), ", but component ", i, " of the dataset's type is ",
                                       is_batch                                       ? "a batch of byte strings"
                                       : wanted[i].kind == ComponentSpec::Kind::Bytes ? "a byte string"
                                                                                      : "a tensor or a number"),
                           .where = str("csv_dataset", files.empty() ? "" : " of " + files),
                           .seen = str(to_string(has), " for ", to_string(wanted[i])),
                           .help = "give the column a number's type, or make the component a std::string"});
  }
}

}  // namespace

StagePtr make_list_files_stage(const std::vector<std::string>& patterns) {
  const Strings files(matching_files(patterns));
  const StagePtr slices = make_slices(Element({Component(files)}));
  std::string detail;
  for (const std::string& pattern : patterns) detail += (detail.empty() ? "" : ", ") + pattern;
  return make_rows({.kind = "list_files", .detail = std::move(detail), .contents = summary(files), .is_list = true},
                   slices->row_source(), slices->element_spec());
}

StagePtr make_tfrecord_stage(StagePtr names, const TFRecordOptions& options) {
  const TFRecordOptions usual;
  Parts shown;
  shown.add_if(options.on_damage == OnDamage::Skip, "skip damaged");
  Parts identity = shown;
  identity.add_if(options.max_record_bytes != usual.max_record_bytes,
                  str("at most ", options.max_record_bytes, " bytes"));
  return std::make_shared<FileReaderStage>(
      ReaderFormat{.kind = "tfrecord",
                   .detail = shown.add(options.compression).text(),
                   .identity = identity.add(options.compression).text(),
                   .open = [options](const std::string& path) { return std::make_unique<TFRecordFile>(path, options); },
                   .spec = one_string()},
      std::move(names));
}

StagePtr make_text_line_stage(StagePtr names, const TextLineOptions& options) {
  const TextLineOptions usual;
  Parts identity;
  identity.add_if(options.max_line_bytes != usual.max_line_bytes, str("at most ", options.max_line_bytes, " bytes"));
  return std::make_shared<FileReaderStage>(
      ReaderFormat{.kind = "text_line",
                   .detail = Parts().add(options.compression).text(),
                   .identity = identity.add(options.compression).text(),
                   .open = [options](const std::string& path) { return std::make_unique<TextFile>(path, options); },
                   .spec = one_string()},
      std::move(names));
}

StagePtr make_fixed_length_stage(StagePtr names, const FixedLengthOptions& options) {
  require_valid(options);
  Parts parts;
  parts.add(counted(static_cast<long long>(options.record_bytes), "byte"));
  parts.add_if(options.header_bytes > 0, str("header ", options.header_bytes));
  parts.add_if(options.footer_bytes > 0, str("footer ", options.footer_bytes));
  parts.add(options.compression);
  return std::make_shared<FileReaderStage>(
      ReaderFormat{
          .kind = "fixed_length_record",
          .detail = parts.text(),
          .identity = parts.text(),
          .open = [options](const std::string& path) { return std::make_unique<FixedLengthFile>(path, options); },
          .spec = one_string()},
      std::move(names));
}

StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, SkeletonPtr skeleton,
                        const std::vector<ComponentSpec>& wanted) {
  if (options.columns.empty()) {
    throw InvalidArgument(errors::kBadOption, {.what = "a CSV dataset needs to know its columns and their types",
                                               .where = "csv_dataset",
                                               .help = "name them in CsvOptions::columns"});
  }
  require_valid(options);
  require_fitting_columns(*names, options, wanted);
  std::vector<ComponentSpec> components;
  Parts shown;
  for (const CsvColumn& column : options.columns) {
    components.push_back(spec_of(column.type));
    shown.add(str(column.name.empty() ? "" : column.name + " ", to_string(column.type)));
  }
  return std::make_shared<FileReaderStage>(
      ReaderFormat{.kind = "csv",
                   .detail = shown.add(options.compression).text(),
                   .identity = csv_identity(options),
                   .open = [options, skeleton](
                               const std::string& path) { return std::make_unique<CsvFile>(path, options, skeleton); },
                   .spec = {std::move(components), skeleton}},
      std::move(names));
}

}  // namespace lockstep::data
