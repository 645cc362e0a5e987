#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/files/reader_stage.h"
#include "lockstep/data/format/list_files.h"
#include "lockstep/data/stages/sources.h"

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

std::string with_compression(std::string_view text, Compression compression) {
  if (compression == Compression::None) return std::string(text);
  return str(text, text.empty() ? "" : ", ", to_string(compression));
}

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
  bool jumps() const override { return seeks_; }

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
  bool pass_over() override { return reader_.skip(1) == 1; }  // if only a field does not fit its column

 private:
  SkeletonPtr skeleton_;
};

}  // namespace

StagePtr make_list_files_stage(const std::vector<std::string>& patterns) {
  const Strings files(matching_files(patterns));
  const StagePtr slices = make_slices(Element({Component(files)}));
  std::string detail;
  for (const std::string& pattern : patterns) detail += (detail.empty() ? "" : ", ") + pattern;
  return std::make_shared<RowsStage>("list_files", std::move(detail), slices->row_source(), slices->element_spec(),
                                     summary(files));
}

StagePtr make_tfrecord_stage(StagePtr names, const TFRecordOptions& options) {
  return std::make_shared<FileReaderStage>(
      "tfrecord", with_compression(options.on_damage == OnDamage::Skip ? "skip damaged" : "", options.compression),
      std::move(names), [options](const std::string& path) { return std::make_unique<TFRecordFile>(path, options); },
      one_string());
}

StagePtr make_text_line_stage(StagePtr names, const TextLineOptions& options) {
  return std::make_shared<FileReaderStage>(
      "text_line", with_compression("", options.compression), std::move(names),
      [options](const std::string& path) { return std::make_unique<TextFile>(path, options); }, one_string());
}

StagePtr make_fixed_length_stage(StagePtr names, const FixedLengthOptions& options) {
  return std::make_shared<FileReaderStage>(
      "fixed_length_record", with_compression(str(options.record_bytes, " bytes"), options.compression),
      std::move(names), [options](const std::string& path) { return std::make_unique<FixedLengthFile>(path, options); },
      one_string());
}

StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, SkeletonPtr skeleton) {
  if (options.columns.empty()) {
    throw InvalidArgument(errors::kBadOption, {.what = "a CSV dataset needs to know its columns and their types",
                                               .where = "CsvDataset",
                                               .help = "name them in CsvOptions::columns"});
  }
  std::vector<ComponentSpec> components;
  std::string detail;
  for (const CsvColumn& column : options.columns) {
    components.push_back(column.type == CsvType::String
                             ? ComponentSpec::bytes()
                             : ComponentSpec::tensor(dtype_of(column.type), PartialShape(std::vector<std::int64_t>{})));
    detail += str(detail.empty() ? "" : ", ", column.name.empty() ? "" : column.name + " ", to_string(column.type));
  }
  ElementSpec spec{std::move(components), skeleton};
  return std::make_shared<FileReaderStage>(
      "csv", with_compression(detail, options.compression), std::move(names),
      [options, skeleton](const std::string& path) { return std::make_unique<CsvFile>(path, options, skeleton); },
      std::move(spec));
}

}  // namespace lockstep::data
