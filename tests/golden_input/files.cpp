#include "tests/golden_input/files.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/pipeline_iterator.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/golden_input/functions.h"

namespace lockstep::golden_input {
namespace {

using namespace data;

/// A folder that is removed at the end of the program.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep_golden_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder for files");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string text_of(const json& record, const std::string& reader) {
  std::string text = record.is_string() ? record.get<std::string>() : std::to_string(record.get<std::int64_t>());
  if (reader == "fixed_length") text.insert(0, text.size() < 4 ? 4 - text.size() : 0, '0');
  return text;
}

void write_file(const std::string& path, const json& records, const std::string& reader) {
  if (reader == "tfrecord") {
    TFRecordWriter writer(path);
    for (const json& record : records) writer.write(text_of(record, reader));
    writer.close();
    return;
  }
  std::ofstream out(path, std::ios::binary);
  for (const json& record : records) out << text_of(record, reader) << (reader == "text" ? "\n" : "");
  if (!out) throw std::runtime_error("cannot write " + path);
}

/// The names of a source's files, which are written on first use.
std::vector<std::string> names_of(const json& files, const std::string& reader) {
  static Folder folder;
  static std::map<std::string, std::vector<std::string>> written;
  auto& names = written[reader + files.dump()];
  if (!names.empty() || files.empty()) return names;
  const std::filesystem::path place = folder.path() / std::to_string(written.size());
  std::filesystem::create_directory(place);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string number = std::to_string(i);
    names.push_back(
        (place / ("file" + std::string(4 - std::min<std::size_t>(4, number.size()), '0') + number)).string());
    write_file(names.back(), files[i], reader);
  }
  return names;
}

StagePtr make_reader(StagePtr names, const std::string& reader) {
  const Dataset<std::string> files(std::move(names));
  if (reader == "tfrecord") return tfrecord_dataset(files).stage();
  if (reader == "text") return text_line_dataset(files).stage();
  if (reader == "fixed_length") return fixed_length_record_dataset(files, {.record_bytes = 4}).stage();
  golden::unknown_value("reader", reader);
}

StagePtr names_stage(std::vector<std::string> names) { return from_tensor_slices(std::move(names)).stage(); }

/// A source that cannot be shared, like a reader that was given plain names in a graph.
StagePtr make_opaque_reader(const std::vector<std::string>& names, const std::string& reader) {
  const StagePtr records = make_reader(names_stage(names), reader);
  return make_generator(
      [records]() -> Generator {
        return [iterator = std::make_shared<PipelineIterator>(records, IterationContext{})](Element& element) {
          return iterator->next(element);
        };
      },
      records->element_spec(), GeneratorOptions{.spec = records->element_spec()});
}

}  // namespace

StagePtr build_files(const json& source) {
  golden::allow_only(source, {"files", "reader", "form", "cycle_length", "block_length"}, "a source of files");
  const std::string reader = source.at("reader"), form = source.at("form");
  const std::vector<std::string> names = names_of(source["files"], reader);
  const ElementSpec record{{{ComponentSpec::bytes()}}};
  const auto same = [record](const ElementSpec&) { return record; };
  const Expansion open = [reader](Element&& name) { return make_reader(names_stage({name.bytes(0)}), reader); };
  const auto flat_map = [&](StagePtr input) {
    return make_interleave(std::move(input), open, record, std::nullopt, same);
  };
  if (form == "flat_map") return flat_map(names_stage(names));
  if (form == "reader_of_dataset" || form == "reader_of_list") return make_reader(names_stage(names), reader);
  if (form == "raw_constant") return make_opaque_reader(names, reader);
  if (form == "interleave") {
    return make_interleave(
        names_stage(names), open, record,
        InterleaveOptions{
            .cycle_length = source.at("cycle_length"), .block_length = source.at("block_length"), .spec = same},
        same);
  }
  if (form == "list_files" || form == "list_files_shuffle1") {
    StagePtr found =
        names.empty()
            ? names_stage(names)
            : list_files((std::filesystem::path(names[0]).parent_path() / "*").string(), {.shuffle = false}).stage();
    if (form == "list_files_shuffle1") found = make_shuffle(std::move(found), 1);
    return flat_map(std::move(found));
  }
  golden::unknown_value("form", form);
}

}  // namespace lockstep::golden_input
