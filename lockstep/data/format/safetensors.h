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

// Files of named tensors: 8 bytes with the length of a header in JSON, the header, the bytes of all tensors. No code in
// them, no holes, and every number is little endian.
namespace lockstep::data {

/// The element types that are read and written, in the format's own order, by which files are laid out.
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
LOCKSTEP_EXPORT std::optional<SafetensorsType> safetensors_type_named(std::string_view name);  ///< of "F32"

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::Float32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< of its bytes, counted from the end of the header
  std::uint64_t end = 0;
};

/// "F32 [2, 3]": how all messages describe a tensor.
LOCKSTEP_EXPORT std::string describe(std::string_view type, const std::vector<std::int64_t>& shape);

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their bytes
  SafetensorsMetadata metadata;
  std::uint64_t data_offset = 0;
};

/// Reads the header of a whole file; `path` is for messages. DataLoss unless the header strictly describes all bytes of
/// the file, Unimplemented for other element types.
LOCKSTEP_EXPORT SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

/// A safetensors file in memory. Has exactly the bytes that its header says.
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

/// A tensor to write. Its bytes are those of all elements, row by row.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::Float32;
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

/// Puts tensors into the order of a file: larger elements first, so that all of them are aligned, and then by name.
LOCKSTEP_EXPORT void sort_for_safetensors(std::vector<SafetensorsTensor>& tensors);

/// The header for tensors in this order, with its length before it and padded to a multiple of 8 bytes. The same bytes
/// as Python's safetensors writes. InvalidArgument if a name is no UTF-8, comes twice or is kept for other uses, or if
/// bytes do not fit a shape.
LOCKSTEP_EXPORT std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                               const SafetensorsMetadata& metadata);

/// Writes a file as AtomicFile does: it is complete, or the old one is untouched. If `before_commit` throws, which is
/// called when all bytes are written, the old file stays.
LOCKSTEP_EXPORT void write_safetensors(
    const std::string& path, std::vector<SafetensorsTensor> tensors, const SafetensorsMetadata& metadata,
    FunctionRef<void()> before_commit = [] {});

// Checksums inside a safetensors file. The format has none of its own, so that a flipped bit would become a weight.

/// Of metadata, keys with this beginning are Lockstep's.
inline constexpr std::string_view kOwnMetadata = "lockstep.";
/// CRC32C numbers in hexadecimal digits: first of Lockstep's other metadata, then of each tensor in the order of the file.
inline constexpr const char* kChecksumKey = "lockstep.crc32c";

/// The value for `kChecksumKey`; `tensors` in the order of the file.
LOCKSTEP_EXPORT std::string safetensors_checksums(const std::vector<SafetensorsTensor>& tensors,
                                                  const SafetensorsMetadata& metadata);

/// DataLoss, with the name of the first damaged tensor, if the file has checksums and they do not fit.
LOCKSTEP_EXPORT void require_safetensors_checksums(const SafetensorsFile& file);

}  // namespace lockstep::data
