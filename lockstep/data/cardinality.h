#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// How many elements a dataset has: a number, infinitely many, or unknown until they are counted.
class LOCKSTEP_EXPORT Cardinality {
 public:
  constexpr Cardinality(std::int64_t count) : value_(count) {}  // NOLINT: a number is a cardinality
  /// More elements than anyone can read; an unknown number of elements.
  static constexpr Cardinality infinite() { return Cardinality(-1); }
  static constexpr Cardinality unknown() { return Cardinality(-2); }

  /// Whether it is a number, infinite or unknown.
  constexpr bool is_known() const { return value_ >= 0; }
  constexpr bool is_infinite() const { return value_ == -1; }
  constexpr bool is_unknown() const { return value_ == -2; }
  /// The number of elements if it is known, -1 for infinite, -2 for unknown (TensorFlow's codes).
  constexpr std::int64_t value() const { return value_; }

  constexpr bool operator==(const Cardinality&) const = default;

 private:
  std::int64_t value_;
};

LOCKSTEP_EXPORT std::string to_string(Cardinality cardinality);  ///< "60000", "infinite", "unknown"

/// What stages do to a cardinality.
LOCKSTEP_EXPORT Cardinality batched(Cardinality rows, std::int64_t batch_size, bool drop_remainder);
/// More elements than an int64 can count are infinitely many.
LOCKSTEP_EXPORT Cardinality multiplied(Cardinality once, std::int64_t count);
LOCKSTEP_EXPORT Cardinality repeated(Cardinality once, std::int64_t count);  ///< count -1: endless
LOCKSTEP_EXPORT Cardinality taken(Cardinality all, std::int64_t count);      ///< count -1: all
LOCKSTEP_EXPORT Cardinality skipped(Cardinality all, std::int64_t count);    ///< count -1: none left
LOCKSTEP_EXPORT Cardinality sharded(Cardinality all, std::int64_t shards, std::int64_t index);
LOCKSTEP_EXPORT Cardinality zipped(Cardinality a, Cardinality b);
LOCKSTEP_EXPORT Cardinality concatenated(Cardinality a, Cardinality b);

}  // namespace lockstep::data
