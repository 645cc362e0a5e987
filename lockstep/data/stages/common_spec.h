#pragma once

#include <string>
#include <vector>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// What is true of the elements of all these datasets. InvalidArgument if they are known not to fit into one: `where`
/// names the stage.
ElementSpec common_spec(const std::vector<StagePtr>& datasets, const std::string& where);

}  // namespace lockstep::data
