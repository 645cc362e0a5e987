#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/format/mapped_file.h"

namespace lockstep::data {

/// The supported element types: numpy's numbers, little endian.
enum class NpyType {
  Bool,
  Int8,
  Int16,
  Int32,
  Int64,
  UInt8,
  UInt16,
  UInt32,
  UInt64,
  Float16,
  Float32,
  Float64,
  Complex64,
  Complex128,
};

LOCKSTEP_EXPORT std::string_view to_string(NpyType type);  ///< as in the file: "<f4"
LOCKSTEP_EXPORT std::size_t item_size(NpyType type);       ///< bytes per element

/// What the header of an npy file says.
struct NpyHeader {
  NpyType type = NpyType::Float32;  ///< type of the elements
  bool fortran_order = false;       ///< the first index changes fastest
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t elements = 1;       ///< how many there are
  std::uint64_t data_offset = 0;    ///< where the elements begin in the file
  std::uint64_t data_bytes = 0;     ///< how many bytes they take
};

/// Reads the header at the start of `bytes`; `path` is for messages. DataLoss if it is damaged, Unimplemented if the
/// elements are objects, text, records, dates or big endian.
LOCKSTEP_EXPORT NpyHeader parse_npy_header(std::string_view bytes, const std::string& path);

/// An npy file in memory. Its size matches its header exactly.
class LOCKSTEP_EXPORT NpyFile {
 public:
  explicit NpyFile(std::string path);

  /// The header, the bytes of the elements, and the file.
  const NpyHeader& header() const { return header_; }
  std::string_view data() const { return file_.bytes().substr(header_.data_offset); }
  const std::string& path() const { return file_.path(); }

 private:
  MappedFile file_;
  NpyHeader header_;
};

/// The header of a version 1 file, padded so that data starts at a multiple of 64. At most 64 dimensions.
LOCKSTEP_EXPORT std::string npy_header(NpyType type, const std::vector<std::int64_t>& shape,
                                       bool fortran_order = false);

/// Writes an array; `data` holds all elements. InvalidArgument if its size does not fit the shape.
LOCKSTEP_EXPORT void write_npy(const std::string& path, NpyType type, const std::vector<std::int64_t>& shape,
                               std::string_view data, bool fortran_order = false);

}  // namespace lockstep::data
