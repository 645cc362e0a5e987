#pragma once

#include "lockstep/data/stage.h"
#include "tests/golden_input/cases.h"

namespace lockstep::golden_input {

/// A dataset of the records of files, which are first written into a separate folder:
/// {"files": [[1, 2], [3]], "reader": "tfrecord", "form": "flat_map"}.
data::StagePtr build_files(const json& source);

}  // namespace lockstep::golden_input
