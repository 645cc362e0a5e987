#include "lockstep/data/format/safetensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/atomic_file.h"

namespace lockstep::data {
namespace {

struct FileTypeName {
  SafetensorsType type;
  std::string_view name;
  std::size_t size;
};

constexpr std::array kFileTypes{
    FileTypeName{SafetensorsType::Bool, "BOOL", 1},
    FileTypeName{SafetensorsType::UInt8, "U8", 1},
    FileTypeName{SafetensorsType::Int8, "I8", 1},
    FileTypeName{SafetensorsType::Float8E5M2, "F8_E5M2", 1},
    FileTypeName{SafetensorsType::Float8E4M3, "F8_E4M3", 1},
    FileTypeName{SafetensorsType::Int16, "I16", 2},
    FileTypeName{SafetensorsType::UInt16, "U16", 2},
    FileTypeName{SafetensorsType::Float16, "F16", 2},
    FileTypeName{SafetensorsType::BFloat16, "BF16", 2},
    FileTypeName{SafetensorsType::Int32, "I32", 4},
    FileTypeName{SafetensorsType::UInt32, "U32", 4},
    FileTypeName{SafetensorsType::Float32, "F32", 4},
    FileTypeName{SafetensorsType::Float64, "F64", 8},
    FileTypeName{SafetensorsType::Int64, "I64", 8},
    FileTypeName{SafetensorsType::UInt64, "U64", 8},
};

const FileTypeName& entry_of(SafetensorsType type) { return *std::ranges::find(kFileTypes, type, &FileTypeName::type); }

}  // namespace

std::string_view to_string(SafetensorsType type) { return entry_of(type).name; }
std::size_t item_size(SafetensorsType type) { return entry_of(type).size; }

std::optional<SafetensorsType> safetensors_type_named(std::string_view name) {
  const auto found = std::ranges::find(kFileTypes, name, &FileTypeName::name);
  if (found == kFileTypes.end()) return std::nullopt;
  return found->type;
}

std::string describe(std::string_view type, const std::vector<std::int64_t>& shape) {
  std::string text = str(type, " [");
  for (std::size_t i = 0; i < shape.size(); ++i) text += str(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

SafetensorsFile::SafetensorsFile(std::string path)
    : file_(std::move(path)), header_(parse_safetensors(file_.bytes(), file_.path())) {}

void sort_for_safetensors(std::vector<SafetensorsTensor>& tensors) {
  std::ranges::sort(tensors, [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
}

void write_safetensors(const std::string& path, std::vector<SafetensorsTensor> tensors,
                       const SafetensorsMetadata& metadata, FunctionRef<void()> before_commit) {
  sort_for_safetensors(tensors);
  const std::string header = safetensors_header(tensors, metadata);
  std::uint64_t size = header.size();
  for (const SafetensorsTensor& tensor : tensors) size += tensor.bytes.size();
  AtomicFile file(path, size);
  file.append(header);
  for (const SafetensorsTensor& tensor : tensors) file.append(tensor.bytes);
  before_commit();
  file.commit();
}

}  // namespace lockstep::data
