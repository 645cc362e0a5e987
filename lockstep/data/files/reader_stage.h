#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/data/format/csv.h"
#include "lockstep/data/format/fixed_length.h"
#include "lockstep/data/format/record_position.h"
#include "lockstep/data/format/text_lines.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// One open file whose records are elements.
class LOCKSTEP_EXPORT FileReader {
 public:
  virtual ~FileReader();
  virtual bool next(Element& element) = 0;  ///< false at the end of the file
  /// Goes past records up to number `end` or the end of the file. Counts each in `number`, also those before one that
  /// fails.
  virtual void skip_until(std::int64_t end, std::int64_t& number) = 0;
  virtual RecordPosition position() const = 0;
  virtual void restore(const RecordPosition& position) = 0;
  /// After an error: goes behind the record that caused it. False if that cannot be found, and with it the rest of the
  /// file.
  virtual bool pass_over() = 0;
  /// Whether `skip_until` jumps: then the end is as near as any record.
  virtual bool jumps() const { return false; }
};

using OpenFile = std::function<std::unique_ptr<FileReader>(const std::string& path)>;

/// The records of files, one file after the other. The input has the files' names. Knows its place as file and byte, so
/// that going back to a saved position reads no file but one.
class LOCKSTEP_EXPORT FileReaderStage final : public Stage {
 public:
  FileReaderStage(std::string kind, std::string detail, StagePtr names, OpenFile open, ElementSpec spec)
      : Stage({std::move(names)}),
        kind_(std::move(kind)),
        detail_(std::move(detail)),
        open_(std::move(open)),
        spec_(std::move(spec)) {}

  std::string_view kind() const override { return kind_; }
  std::string describe() const override { return kind_ + "(" + detail_ + ")"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return std::make_shared<FileReaderStage>(kind_, detail_, std::move(inputs.front()), open_, spec_);
  }
  Cardinality cardinality() const override { return Cardinality::unknown(); }
  ElementSpec element_spec() const override { return spec_; }

  /// How many records a file has. Reads no more than `bytes` for that, which it takes off; none if that is too little,
  /// or the file cannot be read to its end.
  std::optional<std::int64_t> count_records(const std::string& path, std::uintmax_t& bytes) const;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::string kind_;
  std::string detail_;
  OpenFile open_;
  ElementSpec spec_;
};

/// Names of files, in any order that a stage above wants.
LOCKSTEP_EXPORT StagePtr make_list_files_stage(const std::vector<std::string>& patterns);

LOCKSTEP_EXPORT StagePtr make_tfrecord_stage(StagePtr names, const TFRecordOptions& options);
LOCKSTEP_EXPORT StagePtr make_text_line_stage(StagePtr names, const TextLineOptions& options);
LOCKSTEP_EXPORT StagePtr make_fixed_length_stage(StagePtr names, const FixedLengthOptions& options);
/// `skeleton` is put into every element; see `Skeleton`.
LOCKSTEP_EXPORT StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, SkeletonPtr skeleton);

}  // namespace lockstep::data
