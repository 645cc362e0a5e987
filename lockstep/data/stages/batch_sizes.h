#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/data/stage.h"

// How many rows the batches of a pipeline have, without computing them.
namespace lockstep::data {

/// The size of the batches that a pipeline makes; -1 where it cannot be told without running it.
LOCKSTEP_EXPORT std::int64_t find_batch_size(const Stage& stage);

/// Looks up the sizes of batches one after the other. Starts nothing before it is asked.
class BatchSizes {
 public:
  BatchSizes(const Stage& batches, IterationContext context);

  std::int64_t usual() const { return usual_; }      ///< of every batch but short ones; 1 where nothing is known
  bool are_all_usual() const { return all_usual_; }  ///< there are no short ones
  /// Only the last batch of all can be short: nothing behind the stage that makes them goes on after it.
  bool is_only_last_short() const { return only_last_short_; }
  /// Whether `at` can tell the size of any batch without reading again what is cached.
  bool tells_all() const { return all_usual_ || (counts_ && !counts_below_cache_); }
  /// The size of batch `place`, which is not before the one asked for last; none if there is no such batch, or it
  /// is not known.
  std::optional<std::int64_t> at(std::int64_t place);

 private:
  std::int64_t usual_ = 1;
  bool all_usual_ = false;
  bool only_last_short_ = false;
  /// A pipeline that yields at each place the number of rows of the batch that stands there, or would stand there if
  /// it did not fail. Null where only computing the batches tells.
  StagePtr counts_ = nullptr;
  /// `counts_` reads what a cache is there to save: good enough for a batch that failed, which was not cached either.
  bool counts_below_cache_ = false;
  IterationContext context_;
  IteratorPtr reader_;     ///< of `counts_`
  std::int64_t next_ = 0;  ///< the place that it gives next
  std::optional<std::int64_t> last_;
};

}  // namespace lockstep::data
