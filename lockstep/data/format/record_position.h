#pragma once

#include <cstdint>

namespace lockstep::data {

/// A place between two records of a file; all count from 0. Offsets count decompressed bytes.
struct RecordPosition {
  std::uint64_t record = 0;
  std::uint64_t offset = 0;
  std::uint64_t line = 0;  ///< only in CSV files, where a record may span lines

  bool operator==(const RecordPosition&) const = default;
};

}  // namespace lockstep::data
