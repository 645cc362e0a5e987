#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/data/stage.h"

// How many rows the batches of a pipeline have, without computing them.
namespace lockstep::data {

struct BatchSizes {
  std::int64_t usual = 1;  ///< of every batch but short ones; 1 where nothing is known
  bool all_usual = false;  ///< there are no short ones
  /// Only the last batch of all can be short: nothing behind the stage that makes them goes on after it.
  bool only_last_short = false;
  /// A pipeline that yields at each place the number of rows of the batch that stands there, or would stand there if
  /// it did not fail. Null where only computing the batches tells.
  StagePtr counts = nullptr;
  /// `counts` reads what a cache is there to save: good enough for a batch that failed, which was not cached either.
  bool counts_below_cache = false;
};

BatchSizes batch_sizes_of(const Stage& batches);

/// The size of the batches that a pipeline makes; -1 where it cannot be told without running it.
LOCKSTEP_EXPORT std::int64_t find_batch_size(const Stage& stage);

/// Looks up the sizes of batches one after the other. Starts nothing before it is asked.
class BatchSizeReader {
 public:
  BatchSizeReader(BatchSizes sizes, IterationContext context)
      : sizes_(std::move(sizes)), context_(std::move(context)) {}

  const BatchSizes& sizes() const { return sizes_; }
  /// Whether `at` can tell the size of any batch without reading again what is cached.
  bool tells_all() const { return sizes_.all_usual || (sizes_.counts && !sizes_.counts_below_cache); }
  /// The size of batch `place`, which is not before the one asked for last; none if there is no such batch, or it
  /// is not known.
  std::optional<std::int64_t> at(std::int64_t place);

 private:
  BatchSizes sizes_;
  IterationContext context_;
  IteratorPtr counts_;
  std::int64_t next_ = 0;  ///< the place that `counts_` gives next
  std::optional<std::int64_t> last_;
};

}  // namespace lockstep::data
