#pragma once

#include <optional>
#include <string_view>

#include "lockstep/data/format/csv.h"

namespace lockstep::data {

/// The text as a value of this type; nothing if it is not one. Blanks around a number and one plus sign do not matter.
std::optional<CsvValue> csv_value(std::string_view text, CsvType type);

}  // namespace lockstep::data
