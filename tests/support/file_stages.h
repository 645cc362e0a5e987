#pragma once

#include <utility>

#include "lockstep/data/files/files.h"

// Readers of files, given the stage that names the files.
namespace lockstep::data {

inline StagePtr make_tfrecord_stage(StagePtr names, const TFRecordOptions& options) {
  return tfrecord_dataset(Dataset<std::string>(std::move(names)), options).stage();
}

inline StagePtr make_text_line_stage(StagePtr names, const TextLineOptions& options) {
  return text_line_dataset(Dataset<std::string>(std::move(names)), options).stage();
}

}  // namespace lockstep::data
