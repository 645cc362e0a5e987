#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/data/distribute/shard_plan.h"
#include "lockstep/data/stage.h"

// The stages that distributing puts behind or into a user's pipeline.
namespace lockstep::data {

/// The rows of `batches` cut anew by an endless cycle of sizes, across the borders of batches ("rebatch").
LOCKSTEP_EXPORT StagePtr make_balanced_stream(StagePtr batches, std::vector<std::int64_t> sizes,
                                              bool drop_remainder = false);

/// Each batch by itself cut into `pieces` pieces of ceil(rows / pieces) rows, the last ones short or empty
/// ("legacy rebatch"). Components with different numbers of rows are cut each by itself; if there is a `told`, with a
/// warning that sets it.
LOCKSTEP_EXPORT StagePtr make_ceil_split(StagePtr batches, int pieces,
                                         std::shared_ptr<std::atomic<bool>> told = nullptr);

/// Warns if the components of a batch have different numbers of rows, unless `told`. TensorFlow cuts each component by
/// its own size without a word.
void tell_unequal_rows(const Element& batch, std::atomic<bool>& told);

/// Elements `index`, `index + shards`, ... InvalidArgument in place of the first one if there are too few.
LOCKSTEP_EXPORT StagePtr make_required_shard(StagePtr input, int shards, int index,
                                             TooFew too_few = TooFew::FailsOnEveryWorker);

/// What such a shard shares out; null if the stage is none.
LOCKSTEP_EXPORT const Stage* input_of_required_shard(const Stage& stage);
/// Among how many; 0 if the stage is none.
LOCKSTEP_EXPORT int shards_of_required_shard(const Stage& stage);

/// Piece k of `pieces` of a batch by the ceil split.
LOCKSTEP_EXPORT Element ceil_piece_of(const Element& batch, int pieces, int k);

}  // namespace lockstep::data
