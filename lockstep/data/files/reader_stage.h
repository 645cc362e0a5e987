#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/data/format/record_reader.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Makes an element of the bytes of the record that was just read, in the memory of the string that is there.
void record_to_element(const RecordReader& reader, Element& element);

/// How files of one format are read.
struct ReaderFormat {
  std::string kind;      ///< "tfrecord"
  std::string detail;    ///< options worth showing
  std::string identity;  ///< every option that decides the records, for `fingerprint`
  std::function<std::unique_ptr<RecordReader>(const std::string& path)> open;
  ElementSpec spec;  ///< of the records
  std::function<void(const RecordReader&, Element&)> to_element = record_to_element;
};

/// The records of files, one file after the other. Its place is a file and a byte, so that going back to a saved
/// position reads only one file.
StagePtr make_file_reader(ReaderFormat format, StagePtr names);

/// "3 files: a.tfrecord, ...", as far as names are known without computing them; empty if not even their number is.
std::string describe_files(const Stage& names);

}  // namespace lockstep::data
