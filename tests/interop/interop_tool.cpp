// Writes files for other programs to read, and checks files written by them; interop.py is the other side. Both compute
// the contents with the same formulas.
//
//   interop_tool write-tensorflow|check-tensorflow|read-text|write-tensorboard|write-numpy|check-numpy|check-csv|
//                write-safetensors|check-safetensors FOLDER

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/csv.h"
#include "lockstep/data/format/example.h"
#include "lockstep/data/format/npy.h"
#include "lockstep/data/format/safetensors.h"
#include "lockstep/data/format/text_lines.h"
#include "lockstep/data/format/tfrecord.h"
#include "tests/interop/interop_events.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

constexpr int kRecords = 50;

const std::vector<std::pair<std::string, Compression>> kFiles{
    {"plain", Compression::None}, {"zlib", Compression::Zlib}, {"gzip", Compression::Gzip}};

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("not as expected: %s\n", what.c_str());
  ++failures;
}

Example example_number(std::int64_t i) {
  std::vector<float> floats;
  for (int j = 0; j < i % 5; ++j) floats.push_back(static_cast<float>(i) + 0.5F * static_cast<float>(j));
  std::vector<float> image;
  for (int j = 0; j < 784; ++j) image.push_back(static_cast<float>(i * 784 + j) / 16);
  return {{"floats", floats},
          {"image", image},
          {"ints", std::vector<std::int64_t>{i, -i, i << 40}},
          {"text", std::vector<std::string>{str("record ", i), "", std::string("\0\xff", 2)}}};
}

void write_tensorflow(const std::string& folder) {
  for (const auto& [name, compression] : kFiles) {
    TFRecordWriter writer(folder + "/" + name, compression);
    for (int i = 0; i < kRecords; ++i) writer.write(write_example(example_number(i)));
    writer.close();
  }
}

void check_tensorflow(const std::string& folder) {
  for (const auto& [name, compression] : kFiles) {
    TFRecordReader reader(folder + "/" + name, {.compression = compression});
    for (int i = 0; i < kRecords; ++i) {
      expect(reader.next(), str(name, " has record ", i));
      expect(read_example(reader.record()) == example_number(i), str(name, " record ", i, " has the same values"));
      expect(reader.record() == write_example(example_number(i)), str(name, " record ", i, " has the same bytes"));
    }
    expect(!reader.next(), name + " ends");
  }
}

// Array k has element type k, element e the value e (bool: e % 2; complex: e - e i), shape (2, 3).
template <class T>
std::string array_bytes(bool complex = false) {
  std::string bytes;
  for (int e = 0; e < 6; ++e) {
    for (int part = 0; part < (complex ? 2 : 1); ++part) {
      const T value = static_cast<T>(part == 0 ? e : -e);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  return bytes;
}

std::string array_data(NpyType type) {
  switch (type) {
    case NpyType::Bool: return {"\0\1\0\1\0\1", 6};
    case NpyType::Int8:
    case NpyType::UInt8: return array_bytes<std::int8_t>();
    case NpyType::Int16:
    case NpyType::UInt16: return array_bytes<std::int16_t>();
    case NpyType::Int32:
    case NpyType::UInt32: return array_bytes<std::int32_t>();
    case NpyType::Int64:
    case NpyType::UInt64: return array_bytes<std::int64_t>();
    case NpyType::Float16: return {"\x00\x00\x00\x3c\x00\x40\x00\x42\x00\x44\x00\x45", 12};  // 0 to 5
    case NpyType::Float32: return array_bytes<float>();
    case NpyType::Float64: return array_bytes<double>();
    case NpyType::Complex64: return array_bytes<float>(true);
    case NpyType::Complex128: return array_bytes<double>(true);
  }
  return {};
}

template <class Use>
void for_each_type(Use&& use) {
  for (int k = 0; k <= static_cast<int>(NpyType::Complex128); ++k) {
    const auto type = static_cast<NpyType>(k);
    use(type, std::string(to_string(type).substr(1)));
  }
}

void write_numpy(const std::string& folder) {
  for_each_type([&](NpyType type, const std::string& name) {
    write_npy(folder + "/" + name + ".npy", type, {2, 3}, array_data(type));
  });
  write_npy(folder + "/fortran.npy", NpyType::Float64, {3, 2}, array_data(NpyType::Float64), true);
}

void check_numpy(const std::string& folder) {
  for_each_type([&](NpyType type, const std::string& name) {
    for (const char* version : {"1", "2", "3"}) {
      const NpyFile file(folder + "/" + name + "." + version + ".npy");
      expect(file.header().type == type && file.header().shape == std::vector<std::int64_t>{2, 3}, file.path());
      expect(file.data() == array_data(type), file.path() + " has the same data");
    }
  });
  const NpyFile fortran(folder + "/fortran.npy");
  expect(fortran.header().fortran_order && fortran.data() == array_data(NpyType::Float64), "fortran order");
}

/// The element types that numpy has too, by its names.
const std::vector<std::pair<SafetensorsType, NpyType>> kSharedTypes{
    {SafetensorsType::Bool, NpyType::Bool},       {SafetensorsType::UInt8, NpyType::UInt8},
    {SafetensorsType::Int8, NpyType::Int8},       {SafetensorsType::Int16, NpyType::Int16},
    {SafetensorsType::UInt16, NpyType::UInt16},   {SafetensorsType::Float16, NpyType::Float16},
    {SafetensorsType::Int32, NpyType::Int32},     {SafetensorsType::UInt32, NpyType::UInt32},
    {SafetensorsType::Float32, NpyType::Float32}, {SafetensorsType::Float64, NpyType::Float64},
    {SafetensorsType::Int64, NpyType::Int64},     {SafetensorsType::UInt64, NpyType::UInt64}};
const SafetensorsMetadata kMetadata{{"key \"1\"", "l\xc3\xa4nge\n"}, {"steps", "12"}};

void write_safetensors_file(const std::string& folder) {
  std::vector<std::string> kept;
  kept.reserve(kSharedTypes.size());
  std::vector<SafetensorsTensor> tensors{{"empty", SafetensorsType::Float32, {0, 3}, ""}};
  for (const auto& [type, as] : kSharedTypes) {
    kept.push_back(array_data(as));
    tensors.push_back({std::string(to_string(as).substr(1)), type, {2, 3}, kept.back()});
  }
  write_safetensors(folder + "/tensors.safetensors", tensors, kMetadata);
}

void check_safetensors_file(const std::string& folder) {
  const SafetensorsFile file(folder + "/tensors.safetensors");
  expect(file.metadata() == kMetadata, "metadata");
  expect(file.tensors().size() == kSharedTypes.size() + 1, "the number of tensors");
  for (const SafetensorsEntry& tensor : file.tensors()) {
    if (tensor.name == "empty") {
      expect(tensor.shape == std::vector<std::int64_t>{0, 3}, "the empty tensor");
      continue;
    }
    bool is_known = false;
    for (const auto& [type, as] : kSharedTypes) {
      if (to_string(as).substr(1) != tensor.name) continue;
      is_known = true;
      expect(tensor.type == type && tensor.shape == std::vector<std::int64_t>{2, 3}, tensor.name);
      expect(file.bytes_of(tensor) == array_data(as), tensor.name + " has the same data");
    }
    expect(is_known, tensor.name + " is known");
  }
}

void check_csv(const std::string& folder) {
  CsvReader reader(folder + "/rows.csv");
  for (int i = 0; i < kRecords; ++i) {
    expect(reader.next(), str("row ", i));
    const std::vector<std::string> wanted{str(i), str("quote \" ", i), str("line\r\n", i, "\nend"), str("comma,", i),
                                          ""};
    for (std::size_t column = 0; column < wanted.size(); ++column)
      expect(std::get<std::string_view>(reader.values()[column]) == wanted[column], str("row ", i, " column ", column));
  }
  expect(!reader.next(), "the rows end");
}

/// A text preceded by its length, so that texts can be concatenated.
std::string with_length(std::string_view text) { return str(text.size(), ':', text, ';'); }

std::string lines_of(const std::string& path) {
  std::string all;
  for (TextLineReader reader(path); reader.next();) all += with_length(reader.record());
  return all;
}

/// The records of a file with a string and a number per line; "!" for a failed one.
std::string rows_of(const std::string& path) {
  std::string all;
  CsvReader reader(path, {.columns = {{CsvType::String}, {CsvType::Int64}}, .header = false});
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = reader.next();
      if (!goes_on) break;
      all += with_length(std::get<std::string_view>(reader.values()[0]));
      all += with_length(str(std::get<std::int64_t>(reader.values()[1])));
    } catch (const Error&) {
      all += '!';
      goes_on = reader.pass_over();
    }
  }
  return all;
}

/// Writes the text read from the files lines-0, lines-1, ... and rows-0, rows-1, ... into files of the same name with
/// ".read".
void read_text(const std::string& folder) {
  for (const auto& [name, read] : {std::pair("lines", &lines_of), std::pair("rows", &rows_of)}) {
    int files = 0;
    for (std::string path; std::filesystem::exists(path = str(folder, "/", name, "-", files)); ++files)
      std::ofstream(path + ".read", std::ios::binary) << read(path);
    expect(files > 0, str("there are files of ", name));
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::pair<std::string_view, void (*)(const std::string&)>> commands{
      {"write-tensorflow", &write_tensorflow},
      {"check-tensorflow", &check_tensorflow},
      {"read-text", &read_text},
      {"write-tensorboard", &write_tensorboard},
      {"write-numpy", &write_numpy},
      {"check-numpy", &check_numpy},
      {"check-csv", &check_csv},
      {"write-safetensors", &write_safetensors_file},
      {"check-safetensors", &check_safetensors_file}};
  for (const auto& [name, command] : commands) {
    if (count != 3 || name != arguments[1]) continue;
    try {
      command(arguments[2]);
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
      return 1;
    }
    return failures == 0 ? 0 : 1;
  }
  std::printf("usage: %s COMMAND FOLDER, with COMMAND one of\n", arguments[0]);
  for (const auto& [name, command] : commands) std::printf("  %s\n", std::string(name).c_str());
  return 2;
}
