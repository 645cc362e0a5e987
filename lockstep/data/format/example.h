#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// The three kinds of values that a feature of a tf.train.Example can hold. The order is that of `FeatureValues`.
enum class FeatureType { Bytes, Float, Int64 };

LOCKSTEP_EXPORT std::string_view to_string(FeatureType type);  ///< "bytes", "float", "int64"

using FeatureValues = std::variant<std::vector<std::string>, std::vector<float>, std::vector<std::int64_t>>;

/// An Example as a value: for writing, and for looking at records whose features are not known.
using Example = std::map<std::string, FeatureValues>;

/// The bytes of a tf.train.Example, with the features in the order of their names: equal values give equal bytes.
///
///     writer.write(write_example({{"label", std::vector<std::int64_t>{3}}, {"image", pixels}}));
LOCKSTEP_EXPORT std::string write_example(const Example& example);

/// As above, into a string whose memory is used again.
LOCKSTEP_EXPORT void write_example(const Example& example, std::string& out);

/// All features of a record; one that holds no list at all is left out. DataLoss if the bytes are no Example.
LOCKSTEP_EXPORT Example read_example(std::string_view record);

}  // namespace lockstep::data
