#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/function_ref.h"
#include "lockstep/data/stage.h"

// Functions over a tree of stages.
namespace lockstep::data {

/// The first stage of a pipeline for which `wanted` is true, each before its inputs; null if there is none.
LOCKSTEP_EXPORT const Stage* find_stage(const Stage& root, FunctionRef<bool(const Stage&)> is_wanted);

/// The pipeline without the unwanted stages, which have one input each.
template <class Unwanted>
StagePtr without_stages(const StagePtr& stage, Unwanted is_unwanted) {
  if (is_unwanted(*stage)) return without_stages(stage->input(), is_unwanted);
  return with_changed_inputs(stage, [&](const StagePtr& input) { return without_stages(input, is_unwanted); });
}

/// Identifies what a pipeline does to its data, as a tree of the stages' identities: equal for two pipelines in which a
/// position means the same, as far as that can be determined. Functions are not compared.
LOCKSTEP_EXPORT std::string fingerprint(const Stage& stage);

/// How many stages of this kind there are in a pipeline.
LOCKSTEP_EXPORT std::int64_t count_stages(const Stage& stage, std::string_view kind);

/// State that stages keep from pass to pass; see PassState.
LOCKSTEP_EXPORT void save_pass_states(const Stage& stage, Position& position);
LOCKSTEP_EXPORT void restore_pass_states(const Stage& stage, Position& position);

/// The first stage (from the end of the pipeline) without exact positions, in words; none if all have them.
LOCKSTEP_EXPORT std::optional<std::string> find_position_obstacle(const Stage& stage);
/// Throws the error for a position that cannot be saved because of that.
[[noreturn]] LOCKSTEP_EXPORT void throw_position_obstacle(const std::string& obstacle);

/// The number of the next pass over a pipeline. Every stage counts passes: datasets that share a shuffle continue each
/// other's count, so that building `shuffled.map(f)` again for each epoch gives a new order each time.
LOCKSTEP_EXPORT std::uint64_t begin_pass(const Stage& stage);
/// Undoes begin_pass if nothing was read and no other pass has begun since.
LOCKSTEP_EXPORT void take_back_pass(const Stage& stage, std::uint64_t epoch);
/// Makes the pass after `epoch` the next one once a position was loaded, as if there had been no interruption.
LOCKSTEP_EXPORT void go_on_after_pass(const Stage& stage, std::uint64_t epoch);

}  // namespace lockstep::data
