#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// The three kinds of values in a feature of a tf.train.Example, in the order of `FeatureValues`.
enum class FeatureType { Bytes, Float, Int64 };

LOCKSTEP_EXPORT std::string_view to_string(FeatureType type);  ///< "bytes", "float", "int64"

/// The values of one feature of an Example.
using FeatureValues = std::variant<std::vector<std::string>, std::vector<float>, std::vector<std::int64_t>>;

/// An Example as a value: for writing, and for inspecting records with unknown features.
using Example = std::map<std::string, FeatureValues>;

/// A feature with the same shape in every record. Without a default, a missing feature is an error; a default has one
/// value (for all elements) or as many as the shape.
struct FixedLenFeature {
  FeatureType type = FeatureType::Float;       ///< what the values are
  std::vector<std::int64_t> shape;             ///< shape of each record's value; empty: a scalar
  std::optional<FeatureValues> default_value;  ///< value of records that lack the feature
};

/// A feature with any number of values per record; none if it is missing.
struct VarLenFeature {
  FeatureType type = FeatureType::Float;  ///< what the values are
};

/// The features to read from Examples; others are skipped.
///
///     FeatureSpec spec{{"image", FixedLenFeature{FeatureType::Float, {784}}},
///                      {"label", FixedLenFeature{FeatureType::Int64, {}}}};
using FeatureSpec = std::map<std::string, std::variant<FixedLenFeature, VarLenFeature>>;

/// The bytes of a tf.train.Example, with features sorted by name: equal values give equal bytes.
///
///     writer.write(write_example({{"label", std::vector<std::int64_t>{3}}, {"image", pixels}}));
LOCKSTEP_EXPORT std::string write_example(const Example& example);

/// All features of a record; one without a list is omitted. DataLoss if the bytes are not an Example.
LOCKSTEP_EXPORT Example read_example(std::string_view record);

}  // namespace lockstep::data
