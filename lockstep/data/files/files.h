#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files/npy_tensor.h"
#include "lockstep/data/format/example.h"
#include "lockstep/data/format/list_files.h"
#include "lockstep/data/format/reader_options.h"

/// Datasets that read files, named as in tf.data; every reader takes one file, several, or a dataset of names. To write
/// files, include lockstep/data/format/tfrecord.h.
namespace lockstep::data {

/// The files that a dataset reads, in order.
class LOCKSTEP_EXPORT FileNames {
 public:
  FileNames(const char* file);                // NOLINT: a name is a list of one
  FileNames(std::string file);                // NOLINT
  FileNames(std::vector<std::string> files);  // NOLINT
  FileNames(std::initializer_list<std::string> files);
  FileNames(const Dataset<std::string>& files);  // NOLINT

  /// The pipeline of the names.
  const StagePtr& stage() const { return stage_; }

 private:
  StagePtr stage_;
};

/// Options of `list_files`.
struct ListFilesOptions {
  bool shuffle = true;                               ///< a different order in every pass
  std::optional<std::uint64_t> seed = std::nullopt;  ///< seed of the shuffle; without it as any other shuffle
};

/// The names of the files that match one of the patterns, looked up now. NotFound if a pattern matches nothing.
///
///     list_files("train-*.tfrecord").interleave([](std::string file) { return tfrecord_dataset(file); })
LOCKSTEP_EXPORT Dataset<std::string> list_files(const std::vector<std::string>& patterns,
                                                const ListFilesOptions& options = {});
LOCKSTEP_EXPORT Dataset<std::string> list_files(std::initializer_list<std::string> patterns,
                                                const ListFilesOptions& options = {});
LOCKSTEP_EXPORT Dataset<std::string> list_files(const std::string& pattern, const ListFilesOptions& options = {});

/// The records of TFRecord files, as bytes.
///
///     tfrecord_dataset(matching_files({"train-*.tfrecord.gz"}), {.compression = Compression::Gzip})
LOCKSTEP_EXPORT Dataset<std::string> tfrecord_dataset(const FileNames& files, const TFRecordOptions& options = {});

/// The lines of text files.
LOCKSTEP_EXPORT Dataset<std::string> text_line_dataset(const FileNames& files, const TextLineOptions& options = {});

/// Records of `record_bytes` each.
LOCKSTEP_EXPORT Dataset<std::string> fixed_length_record_dataset(const FileNames& files,
                                                                 const FixedLengthOptions& options);

/// `result`: the specs given by the element type, one per column; unknown for a vector of tensors. InvalidArgument with
/// files and column if a column cannot become its leaf.
LOCKSTEP_EXPORT StagePtr make_csv_stage(StagePtr names, const CsvOptions& options, const ElementSpec& result);

/// The records of CSV files. `T` has a field for each of `options.columns`: a tensor (scalars), a number or a string;
/// or it is a vector of tensors.
///
///     csv_dataset<std::tuple<float, std::int64_t, std::string>>(
///         "people.csv",
///         {.columns = {{CsvType::Float32, "height"}, {CsvType::Int64, "age"}, {CsvType::String, "name"}}});
template <class T = std::vector<at::Tensor>>
Dataset<T> csv_dataset(const FileNames& files, const CsvOptions& options) {
  static_assert(detail::has_fixed_leaves_v<T> || std::is_same_v<T, std::vector<at::Tensor>>,
                "a record of a CSV file is a structure of fixed size or a vector of tensors");
  return Dataset<T>(make_csv_stage(files.stage(), options, spec_of_type<T>()));
}

/// The rows of an npy file, mapped into memory; batches are gathered straight from the mapping. A file in Fortran order
/// is copied once, since its rows are not contiguous.
LOCKSTEP_EXPORT Dataset<at::Tensor> from_npy(const std::string& path);

/// Features of serialized Examples as tensors. `batched`: the input has batches of records (Strings), each parsed in
/// one call. `names`: the features in the order of the result's components; empty: all, sorted. `result`: the spec
/// given by the element type; unknown for a map keyed by feature names.
LOCKSTEP_EXPORT StagePtr make_parse_example_stage(StagePtr records, bool batched, const FeatureSpec& spec,
                                                  std::vector<std::string> names, const ElementSpec& result);

/// The features of tf.train.Examples. By default a map of tensors; with a type of your own, `names` says which feature
/// is which field. A fixed feature is one field. A variable one is two: its values (padded with zeros in a batch) and
/// their number; in a map the second has the key "name.lengths".
///
///     struct Digits { at::Tensor image, label; };
///     const FeatureSpec spec{{"image", FixedLenFeature{FeatureType::Float, {784}}},
///                            {"label", FixedLenFeature{FeatureType::Int64, {}}}};
///     auto digits = parse_example<Digits>(records.batch(256), spec, {"image", "label"});
///
/// `records` has records or batches of them; parsing batches is faster.
template <class T = std::map<std::string, at::Tensor>, class Records>
Dataset<T> parse_example(const Dataset<Records>& records, const FeatureSpec& spec,
                         std::vector<std::string> names = {}) {
  static_assert(std::is_same_v<Records, std::string> || std::is_same_v<Records, Strings>,
                "parse_example takes records (std::string) or batches of them (Strings)");
  static_assert(detail::has_fixed_leaves_v<T> || std::is_same_v<T, std::map<std::string, at::Tensor>>,
                "parsed Examples are a structure of fixed size or a map of tensors");
  return Dataset<T>(make_parse_example_stage(records.stage(), std::is_same_v<Records, Strings>, spec, std::move(names),
                                             spec_of_type<T>()));
}

}  // namespace lockstep::data
