#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/format/example.h"
#include "lockstep/data/format/reader_options.h"

// Every stage over files, by the call that makes it. Readers take the names of their files from a stage.
namespace lockstep::data {

/// The names of the files that match, in the order of their bytes.
LOCKSTEP_EXPORT StagePtr make_list_files_stage(const std::vector<std::string>& patterns);

LOCKSTEP_EXPORT StagePtr make_tfrecord_stage(StagePtr names, const TFRecordOptions& options);
LOCKSTEP_EXPORT StagePtr make_text_line_stage(StagePtr names, const TextLineOptions& options);
LOCKSTEP_EXPORT StagePtr make_fixed_length_stage(StagePtr names, const FixedLengthOptions& options);

/// `result`: what the type of the elements says about its leaves, one for each column; unknown for a vector of tensors.
/// InvalidArgument with files and column if a column cannot become its leaf.
LOCKSTEP_EXPORT StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, const ElementSpec& result);

/// The rows of an npy file; batches are gathered straight from the mapped file. A file in Fortran order is copied into
/// memory once, since its rows do not lie together.
LOCKSTEP_EXPORT StagePtr make_npy_stage(const std::string& path);

/// Features of serialized Examples as tensors. `batched`: the input has batches of records (Strings), each of which is
/// parsed in one go. `names`: the features in the order of the result's components; empty: all, sorted. `result`: what
/// the type of the elements says about its leaves; unknown for a map with the features' names as keys.
LOCKSTEP_EXPORT StagePtr make_parse_example_stage(StagePtr records, bool batched, const FeatureSpec& spec,
                                                  std::vector<std::string> names, const ElementSpec& result);

}  // namespace lockstep::data
