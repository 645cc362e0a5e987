#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/format/example.h"

namespace lockstep::data {

/// Destination of a VarLenFeature's values, which are appended. `lengths` gets the number of values of each record.
struct VarLenValues {
  std::vector<std::string_view> bytes;  ///< values of byte strings
  std::vector<float> floats;            ///< values of floats
  std::vector<std::int64_t> ints;       ///< values of integers
  std::vector<std::int64_t> lengths;    ///< number of values of each record

  /// Drops all values and keeps the memory.
  void clear();
};

/// Destination of one feature's values; only the pointer for its type is used. `bytes` get views into the record (or
/// into the parser, for a default).
struct FeatureSlot {
  std::string_view* bytes = nullptr;  ///< where byte strings go
  float* floats = nullptr;            ///< where floats go
  std::int64_t* ints = nullptr;       ///< where integers go
  VarLenValues* variable = nullptr;   ///< where the values of a VarLenFeature go
};

/// Calls `f` with pointers to the members of FeatureSlot and VarLenValues for values of this type.
template <class F>
decltype(auto) with_members(FeatureType type, F&& f) {
  switch (type) {
    case FeatureType::Bytes: return f(&FeatureSlot::bytes, &VarLenValues::bytes);
    case FeatureType::Float: return f(&FeatureSlot::floats, &VarLenValues::floats);
    default: return f(&FeatureSlot::ints, &VarLenValues::ints);
  }
}

/// Parses features of serialized Examples straight into the caller's memory. Immutable and thread-safe. Allocates
/// nothing per record, except to grow `VarLenValues`.
class LOCKSTEP_EXPORT ExampleParser {
 public:
  /// A feature to take out, and where its values go.
  struct Column {
    std::string name = {};                             ///< name of the feature
    FeatureType type = FeatureType::Float;             ///< what the values are
    bool variable = false;                             ///< a `VarLenFeature`
    std::vector<std::int64_t> shape = {};              ///< empty if variable
    std::int64_t elements = 0;                         ///< per record; 0 if variable
    std::optional<FeatureValues> default_values = {};  ///< as many as elements
  };

  /// InvalidArgument for an invalid shape or default.
  explicit ExampleParser(const FeatureSpec& spec);

  /// Sorted by name; slots are in the same order.
  std::span<const Column> columns() const { return columns_; }

  /// DataLoss if the record is not an Example, InvalidArgument if its features or the slots do not match. After an
  /// error the slots' contents are undefined.
  void parse(std::string_view record, std::span<const FeatureSlot> slots) const;

  /// The name of a row in errors of `parse_batch`: "record 3 at byte 57 of a.tfrecord".
  using RowName = std::function<std::string(std::size_t row)>;

  /// Record i goes to element i * elements of the fixed slots.
  void parse_batch(std::span<const std::string_view> records, std::span<const FeatureSlot> slots,
                   const RowName& name_row = nullptr) const;

 private:
  void parse_row(std::string_view record, std::span<const FeatureSlot> slots, std::int64_t row) const;
  std::size_t find_column(std::string_view name, std::size_t guess) const;

  std::vector<Column> columns_;
};

}  // namespace lockstep::data
