#include "lockstep/data/format/safetensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/data/format/listed.h"

namespace lockstep::data {
namespace {

struct FileTypeName {
  std::string_view name;
  std::size_t size;
};

/// In the order of SafetensorsType.
constexpr std::array kFileTypes{FileTypeName{"BOOL", 1},    FileTypeName{"U8", 1},      FileTypeName{"I8", 1},
                                FileTypeName{"F8_E5M2", 1}, FileTypeName{"F8_E4M3", 1}, FileTypeName{"I16", 2},
                                FileTypeName{"U16", 2},     FileTypeName{"F16", 2},     FileTypeName{"BF16", 2},
                                FileTypeName{"I32", 4},     FileTypeName{"U32", 4},     FileTypeName{"F32", 4},
                                FileTypeName{"F64", 8},     FileTypeName{"I64", 8},     FileTypeName{"U64", 8}};

const FileTypeName& entry_of(SafetensorsType type) { return kFileTypes.at(static_cast<std::size_t>(type)); }

}  // namespace

std::string_view to_string(SafetensorsType type) { return entry_of(type).name; }
std::size_t item_size(SafetensorsType type) { return entry_of(type).size; }

std::optional<SafetensorsType> safetensors_type_named(std::string_view name) {
  const auto found = std::ranges::find(kFileTypes, name, &FileTypeName::name);
  if (found == kFileTypes.end()) return std::nullopt;
  return static_cast<SafetensorsType>(found - kFileTypes.begin());
}

std::string describe(std::string_view type, const std::vector<std::int64_t>& shape) {
  return str(type, " [", listed(shape), "]");
}

SafetensorsFile::SafetensorsFile(MappedFile file)
    : file_(std::move(file)), header_(parse_safetensors(file_.bytes(), file_.path())) {}

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
