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
};

using OpenFile = std::function<std::unique_ptr<FileReader>(const std::string& path)>;

/// How files of one format are read.
struct ReaderFormat {
  std::string kind;      ///< "tfrecord"
  std::string detail;    ///< options worth showing
  std::string identity;  ///< every option that decides the records, for `fingerprint`
  OpenFile open;
  ElementSpec spec;  ///< of the records
};

/// The records of files, one file after the other. The input has the files' names. Knows its place as file and byte, so
/// that going back to a saved position reads no file but one.
class LOCKSTEP_EXPORT FileReaderStage final : public StageOf<FileReaderStage> {
 public:
  FileReaderStage(ReaderFormat format, StagePtr names) : StageOf({std::move(names)}), format_(std::move(format)) {}

  std::string_view kind() const override { return format_.kind; }
  std::string describe() const override;  ///< "tfrecord(3 files: a.tfrecord, ...; GZIP)"
  std::string identity() const override { return format_.kind + "(" + format_.identity + ")"; }
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Files, .passes_over = true, .runs_functions = false};
  }
  Cardinality cardinality() const override { return Cardinality::unknown(); }
  ElementSpec element_spec() const override { return format_.spec; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  ReaderFormat format_;
};

/// "3 files: a.tfrecord, ...", as far as names are known without computing them; empty if not even their number is.
LOCKSTEP_EXPORT std::string describe_files(const Stage& names);

/// Names of files, in any order that a stage above wants.
LOCKSTEP_EXPORT StagePtr make_list_files_stage(const std::vector<std::string>& patterns);

LOCKSTEP_EXPORT StagePtr make_tfrecord_stage(StagePtr names, const TFRecordOptions& options);
LOCKSTEP_EXPORT StagePtr make_text_line_stage(StagePtr names, const TextLineOptions& options);
LOCKSTEP_EXPORT StagePtr make_fixed_length_stage(StagePtr names, const FixedLengthOptions& options);
/// `skeleton` is put into every element; see `Skeleton`. `wanted`: what the user's type says about its leaves, one for
/// each column, or none. InvalidArgument with files and column if a column cannot become its leaf.
LOCKSTEP_EXPORT StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, SkeletonPtr skeleton,
                                        const std::vector<ComponentSpec>& wanted = {});

}  // namespace lockstep::data
