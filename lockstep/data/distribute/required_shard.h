#pragma once

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Which workers report that there are elements, but fewer than shards.
enum class TooFew {
  FailsOnEveryWorker,
  FailsWhereSeen,  ///< as in TensorFlow: a shard that begins behind the end is empty, without an error
};

/// Elements `index`, `index + shards`, ... InvalidArgument in place of the first one if there are too few.
LOCKSTEP_EXPORT StagePtr make_required_shard(StagePtr input, int shards, int index,
                                             TooFew too_few = TooFew::FailsOnEveryWorker);

}  // namespace lockstep::data
