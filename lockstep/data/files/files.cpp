#include "lockstep/data/files/files.h"

namespace lockstep::data {

FileNames::FileNames(const char* file) : FileNames(std::string(file)) {}
FileNames::FileNames(std::string file) : FileNames(std::vector<std::string>{std::move(file)}) {}
FileNames::FileNames(std::vector<std::string> files) : stage_(from_tensor_slices(std::move(files)).stage()) {}
FileNames::FileNames(std::initializer_list<std::string> files) : FileNames(std::vector<std::string>(files)) {}
FileNames::FileNames(const Dataset<std::string>& files) : stage_(files.stage()) {}

Dataset<std::string> list_files(const std::vector<std::string>& patterns, const ListFilesOptions& options) {
  const Dataset<std::string> files(make_list_files_stage(patterns));
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
  return Dataset<std::string>(make_tfrecord_stage(files.stage(), options));
}

Dataset<std::string> text_line_dataset(const FileNames& files, const TextLineOptions& options) {
  return Dataset<std::string>(make_text_line_stage(files.stage(), options));
}

Dataset<std::string> fixed_length_record_dataset(const FileNames& files, const FixedLengthOptions& options) {
  return Dataset<std::string>(make_fixed_length_stage(files.stage(), options));
}

Dataset<at::Tensor> from_npy(const std::string& path) { return Dataset<at::Tensor>(make_npy_stage(path)); }

}  // namespace lockstep::data
