#include "lockstep/data/format/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "lockstep/base/crc32c.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/data/format/file_error.h"
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

constexpr std::size_t kDigits = 8;

std::string digits(std::uint32_t crc) {
  std::array<char, kDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%08x", static_cast<unsigned>(crc));
  return text.data();
}

std::string checksum_of(const SafetensorsMetadata& metadata) {
  std::uint32_t crc = 0;
  for (const auto& [key, value] : metadata) {
    if (!key.starts_with(kOwnMetadata) || key == kChecksumKey) continue;
    crc = crc32c(str(key, '=', value, '\n'), crc);
  }
  return digits(crc);
}

[[noreturn]] void damaged(const SafetensorsFile& file, const std::string& what, std::string seen = {}) {
  throw DataLoss(errors::kSafetensors,
                 {.what = str(file.path(), " is damaged: ", what),
                  .where = str("checksums of ", file.path()),
                  .seen = std::move(seen),
                  .help = str("use another copy of the file; if another program has changed its tensors on purpose, "
                              "save it without the metadata '",
                              kChecksumKey, "'")});
}

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

std::string safetensors_checksums(const std::vector<SafetensorsTensor>& tensors, const SafetensorsMetadata& metadata) {
  std::string text = checksum_of(metadata);
  for (const SafetensorsTensor& tensor : tensors) text += ' ' + digits(crc32c(tensor.bytes));
  return text;
}

void require_safetensors_checksums(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kChecksumKey);
  if (found == file.metadata().end()) return;
  const std::string_view text = found->second;
  if (text.size() != kDigits + (kDigits + 1) * file.tensors().size())
    damaged(file, "it does not have one checksum per tensor",
            counted(static_cast<int>(file.tensors().size()), "tensor"));
  const auto number = [&](std::size_t i) { return text.substr(i * (kDigits + 1), kDigits); };
  if (number(0) != checksum_of(file.metadata())) damaged(file, "its metadata has changed");
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const SafetensorsEntry& tensor = file.tensors()[i];
    const std::string crc = digits(crc32c(file.bytes_of(tensor)));
    if (crc == number(i + 1)) continue;
    damaged(file, str("the bytes of tensor ", data::in_quotes(tensor.name, 200), " have changed"),
            str("CRC32C ", crc, ", written as ", number(i + 1)));
  }
}

}  // namespace lockstep::data
