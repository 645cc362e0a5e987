#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/function_ref.h"
#include "lockstep/data/stage.h"

// A tree of stages as a whole.
namespace lockstep::data {

/// The first stage of a pipeline, each before its inputs, that is wanted; null if there is none.
LOCKSTEP_EXPORT const Stage* find_stage(const Stage& root, FunctionRef<bool(const Stage&)> is_wanted);

/// The pipeline without some of its stages of one input.
template <class Unwanted>
StagePtr without_stages(const StagePtr& stage, Unwanted is_unwanted) {
  if (is_unwanted(*stage)) return without_stages(stage->input(), is_unwanted);
  return with_changed_inputs(stage, [&](const StagePtr& input) { return without_stages(input, is_unwanted); });
}

/// What a pipeline does to its data, as a tree of the stages' identities: equal for two pipelines in which a position
/// means the same, as far as that can be seen. Functions cannot.
LOCKSTEP_EXPORT std::string fingerprint(const Stage& stage);

/// How many stages of this kind there are in a pipeline.
LOCKSTEP_EXPORT std::int64_t count_stages(const Stage& stage, std::string_view kind);

/// What the stages of a pipeline keep from pass to pass; see Lasting.
LOCKSTEP_EXPORT void save_all_lasting(const Stage& stage, Position& position);
LOCKSTEP_EXPORT void restore_all_lasting(const Stage& stage, Position& position);

/// The first stage (from the end of the pipeline) that cannot promise an exact position, in words; none if all can.
LOCKSTEP_EXPORT std::optional<std::string> find_position_obstacle(const Stage& stage);
/// The error of a position that cannot be saved because of that.
[[noreturn]] LOCKSTEP_EXPORT void throw_position_obstacle(const std::string& obstacle);

/// The number of the next pass over a pipeline. A pass counts for every stage in it: datasets that share a shuffle go
/// on counting where the other one was, so that `shuffled.map(f)` made anew for each epoch gives another order each
/// time.
LOCKSTEP_EXPORT std::uint64_t begin_pass(const Stage& stage);
/// Takes back a pass of which nothing was read, unless another one has begun since.
LOCKSTEP_EXPORT void take_back_pass(const Stage& stage, std::uint64_t epoch);
/// After a position was loaded the next pass is the one behind the loaded one, as if there had been no interruption.
LOCKSTEP_EXPORT void go_on_after_pass(const Stage& stage, std::uint64_t epoch);

}  // namespace lockstep::data
