#pragma once

#include "lockstep/data/stage.h"
#include "tests/golden_input/cases.h"

namespace lockstep::golden_input {

/// A dataset of the records of files, which are written into a folder of their own first:
/// {"files": [[1, 2], [3]], "reader": "tfrecord", "form": "flat_map"}.
data::StagePtr build_files(const json& source);

}  // namespace lockstep::golden_input
