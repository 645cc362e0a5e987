#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/data/stage.h"

// How many rows the batches of a pipeline have, without computing them.
namespace lockstep::data {

/// The size of the batches that a pipeline makes; -1 if it is unknown without running it.
LOCKSTEP_EXPORT std::int64_t find_batch_size(const Stage& stage);

/// Looks up the sizes of batches in order. Starts nothing before the first call.
class BatchSizes {
 public:
  BatchSizes(const Stage& batches, IterationContext context);

  std::int64_t usual() const { return usual_; }      ///< size of every batch except short ones; 1 if unknown
  bool are_all_usual() const { return all_usual_; }  ///< there are no short ones
  /// Only the last batch of all can be short: no later stage continues after it.
  bool is_only_last_short() const { return only_last_short_; }
  /// Whether `at` knows the size of any batch without reading again what is cached.
  bool tells_all() const { return all_usual_ || (counts_ && !counts_below_cache_); }
  /// The size of batch `place`, which must not precede the one requested last; none if there is no such batch, or its
  /// size is unknown.
  std::optional<std::int64_t> at(std::int64_t place);

 private:
  std::int64_t usual_ = 1;
  bool all_usual_ = false;
  bool only_last_short_ = false;
  /// A pipeline that yields at each place the number of rows of the batch there, or that would be there if it did not
  /// fail. Null if only computing the batches shows it.
  StagePtr counts_ = nullptr;
  /// `counts_` reads what a cache avoids reading: acceptable for a batch that failed, which was not cached either.
  bool counts_below_cache_ = false;
  IterationContext context_;
  IteratorPtr reader_;     ///< iterates `counts_`
  std::int64_t next_ = 0;  ///< the place that it yields next
  std::optional<std::int64_t> last_;
};

}  // namespace lockstep::data
