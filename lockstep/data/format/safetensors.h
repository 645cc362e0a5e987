#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/data/format/mapped_file.h"

// Files of named tensors: 8 bytes with the length of a JSON header, the header, the bytes of all tensors. They contain
// no code and no gaps, and every number is little endian.
namespace lockstep::data {

/// The supported element types, in the format's own order, which determines the layout of files.
enum class SafetensorsType {
  Bool,
  UInt8,
  Int8,
  Float8E5M2,
  Float8E4M3,
  Int16,
  UInt16,
  Float16,
  BFloat16,
  Int32,
  UInt32,
  Float32,
  Float64,
  Int64,
  UInt64,
};

LOCKSTEP_EXPORT std::string_view to_string(SafetensorsType type);  ///< as in the file: "F32"
LOCKSTEP_EXPORT std::size_t item_size(SafetensorsType type);       ///< bytes per element
LOCKSTEP_EXPORT std::optional<SafetensorsType> safetensors_type_named(std::string_view name);  ///< the type named "F32"
                                                                                               ///< etc.

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::Float32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< offset of its bytes from the end of the header
  std::uint64_t end = 0;
};

/// "F32 [2, 3]": a tensor in messages.
LOCKSTEP_EXPORT std::string describe(std::string_view type, const std::vector<std::int64_t>& shape);

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their bytes
  SafetensorsMetadata metadata;
  std::uint64_t data_offset = 0;
};

/// Reads the header of a whole file; `path` is for messages. DataLoss unless the header strictly describes all bytes of
/// the file, Unimplemented for other element types.
LOCKSTEP_EXPORT SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

/// A safetensors file in memory. Its size matches its header exactly.
class LOCKSTEP_EXPORT SafetensorsFile {
 public:
  explicit SafetensorsFile(MappedFile file);
  explicit SafetensorsFile(std::string path) : SafetensorsFile(MappedFile(std::move(path))) {}

  const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  std::string_view bytes_of(const SafetensorsEntry& tensor) const {
    return file_.bytes().substr(header_.data_offset + tensor.begin, tensor.end - tensor.begin);
  }
  const std::string& path() const { return file_.path(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// A tensor to write: the bytes of all elements in row-major order.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::Float32;
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

/// Sorts tensors into file order: larger elements first, so that all are aligned, then by name.
LOCKSTEP_EXPORT void sort_for_safetensors(std::vector<SafetensorsTensor>& tensors);

/// The header for tensors in this order, preceded by its length and padded to a multiple of 8 bytes: the same bytes as
/// Python's safetensors writes. InvalidArgument if a name is not UTF-8, occurs twice or is reserved, or if bytes do not
/// match a shape.
LOCKSTEP_EXPORT std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                               const SafetensorsMetadata& metadata);

/// Writes a file as AtomicFile does: the new file is complete or the old one is kept. `before_commit` is called when
/// all bytes are written; if it throws, the old file is kept.
LOCKSTEP_EXPORT void write_safetensors(
    const std::string& path, std::vector<SafetensorsTensor> tensors, const SafetensorsMetadata& metadata,
    FunctionRef<void()> before_commit = [] {});

// Checksums inside a safetensors file. The format has none, so a flipped bit would silently change a weight.

/// Metadata keys with this prefix belong to Lockstep.
inline constexpr std::string_view kOwnMetadata = "lockstep.";
/// CRC32C values as hexadecimal digits: of Lockstep's other metadata, then of each tensor in file order.
inline constexpr const char* kChecksumKey = "lockstep.crc32c";

/// The value for `kChecksumKey`; `tensors` in file order.
LOCKSTEP_EXPORT std::string safetensors_checksums(const std::vector<SafetensorsTensor>& tensors,
                                                  const SafetensorsMetadata& metadata);

/// DataLoss, naming the first damaged tensor, if the file has checksums and they do not match.
LOCKSTEP_EXPORT void require_safetensors_checksums(const SafetensorsFile& file);

}  // namespace lockstep::data
