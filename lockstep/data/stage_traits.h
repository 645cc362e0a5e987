#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/data/auto_shard_policy.h"

namespace lockstep::data {

/// How a stage treats the elements it reads. Plans use these traits and never the name of a stage; traits that a stage
/// does not declare are not assumed.
struct StageTraits {
  /// Where elements come from, for finding files that workers can share.
  enum class Source {
    Unknown,   ///< the search for files ends here
    Memory,    ///< a source without files
    List,      ///< a list in memory: rows, or the names of files
    Files,     ///< the files named by the input
    Inputs,    ///< wherever the inputs come from
    Function,  ///< a function that makes a dataset of each element; see Stage::expand
  };
  /// How elements relate to the inputs' elements.
  enum class Elements {
    New,           ///< anything
    Stacked,       ///< a batch of the next `batch_size`; the last one may be short
    Padded,        ///< the same, filled up to one shape
    Mapped,        ///< anything, computed from the one element in its place
    Rewritten,     ///< the same with as many rows if it is a batch
    Same,          ///< all of the input's, in order
    Stretch,       ///< a range of the input's: take, skip
    Picked,        ///< the input's in another number or order, whatever their values: repeat, shard, shuffle
    Filtered,      ///< the input's that satisfy a predicate
    Concatenated,  ///< the first input's, then the second's
    Zipped,        ///< one of each input, as a tuple
  };
  /// Whether an element is a batch of rows, or one row of a source that has rows.
  enum class Rows { AsInput, Many, One };
  /// Where the elements of a pass are kept for the next ones.
  enum class Cache { None, Memory, File };

  Source source = Source::Unknown;
  Elements elements = Elements::New;
  Rows rows = Rows::AsInput;
  Cache cache = Cache::None;
  std::int64_t batch_size = 0;  ///< for Stacked and Padded
  bool drop_remainder = false;  ///< for Stacked and Padded: a short last batch is dropped
  bool passes_over = false;     ///< skips elements without computing them
  bool runs_functions = true;   ///< needs a user function or generator, or fills a cache, to yield an element
  bool only_buffers = false;    ///< holds elements only to reorder them or to read ahead
  bool asserts_count = false;   ///< checks the number of elements, which changes when workers share them
  bool is_shard_hint = false;   ///< AutoShardPolicy::Hint replaces its numbers
  bool is_measured = true;      ///< has a line in reports of StageMeter
  std::optional<AutoShardPolicy> policy = std::nullopt;  ///< how workers should share what is below

  /// Traits of a stage that chooses, orders or rewrites its inputs' elements, and computes none of those it skips.
  static StageTraits passing_over(Elements elements) {
    return {.source = Source::Inputs, .elements = elements, .passes_over = true, .runs_functions = false};
  }
  bool is_shuffle() const { return elements == Elements::Picked && only_buffers; }
  bool makes_batches() const { return elements == Elements::Stacked || elements == Elements::Padded; }
  /// Whether there is one element per input element, in its place.
  bool is_one_to_one() const {
    return elements == Elements::Mapped || elements == Elements::Rewritten || elements == Elements::Same;
  }
};

}  // namespace lockstep::data
