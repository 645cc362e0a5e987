#pragma once

#include "lockstep/data/input_context.h"
#include "lockstep/data/stage.h"
#include "tests/golden_input/cases.h"

// Datasets from their description: {"source": ..., "ops": [[name, arguments...], ...]}.
namespace lockstep::golden_input {

/// The meaning of "$W", "$w", "$w+1", "$N" and {"per_replica": G} in a dataset function.
data::StagePtr build_dataset(const json& description, const InputContext& context = {});

/// The stages of `ops` on top of `dataset`.
data::StagePtr apply_ops(data::StagePtr dataset, const json& ops, const InputContext& context = {});

}  // namespace lockstep::golden_input
