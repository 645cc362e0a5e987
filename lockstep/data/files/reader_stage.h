#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/data/format/record_reader.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Moves the bytes of the record just read into an element, reusing the memory of its string.
void record_to_element(const RecordReader& reader, Element& element);

/// How files of one format are read.
struct ReaderFormat {
  std::string kind;      ///< "tfrecord"
  std::string detail;    ///< options worth showing
  std::string identity;  ///< every option that affects the records, for `fingerprint`
  std::function<std::unique_ptr<RecordReader>(const std::string& path)> open;
  ElementSpec spec;  ///< spec of the records
  std::function<void(const RecordReader&, Element&)> to_element = record_to_element;
};

/// The records of files, in order. Its position is a file and a byte, so restoring one reads only one file.
StagePtr make_file_reader(ReaderFormat format, StagePtr names);

/// "3 files: a.tfrecord, ...", as far as names are known without computing them; empty if even their number is unknown.
std::string describe_files(const Stage& names);

}  // namespace lockstep::data
