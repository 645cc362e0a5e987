#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/data/auto_shard_policy.h"

namespace lockstep::data {

/// What a stage does to the elements it reads. Plans decide by this and never by the name of a stage; what a stage does
/// not say about itself is not assumed.
struct StageTraits {
  /// Where elements come from, for whoever looks for files that workers can share.
  enum class Source {
    Unknown,   ///< the search for files ends here
    Memory,    ///< a source without files
    List,      ///< a list in memory: rows, or the names of files
    Files,     ///< the files that the input names
    Inputs,    ///< wherever the inputs' come from
    Function,  ///< a function that makes a dataset of each element; see Stage::expand
  };
  /// What an element is, compared with those of the inputs.
  enum class Elements {
    New,           ///< anything
    Stacked,       ///< a batch of the next `batch_size`; the last one may be short
    Padded,        ///< the same, filled up to one shape
    Mapped,        ///< anything, made of one element in its place
    Rewritten,     ///< the same with as many rows if it is a batch
    Same,          ///< the input's: all of them, in order
    Stretch,       ///< the input's from one place to another: take, skip
    Picked,        ///< the input's in another number or order, whatever they hold: repeat, shard, shuffle
    Filtered,      ///< those of the input that a function wants
    Concatenated,  ///< those of the first input, then those of the second
    Zipped,        ///< one of each input side by side
  };
  /// Whether an element is a batch of rows, or one of a source that has rows.
  enum class Rows { AsInput, Many, One };
  /// Where the elements of a pass are kept for the next ones.
  enum class Cache { None, Memory, File };

  Source source = Source::Unknown;
  Elements elements = Elements::New;
  Rows rows = Rows::AsInput;
  Cache cache = Cache::None;
  std::int64_t batch_size = 0;  ///< of Stacked and Padded
  bool drop_remainder = false;  ///< of Stacked and Padded: a short last batch is left out
  bool passes_over = false;     ///< skips elements without computing them
  bool runs_functions = true;   ///< needs a function or a generator of the user's, or fills a cache, to give an element
  bool only_buffers = false;    ///< holds elements only to give them in another order, or sooner
  bool asserts_count = false;   ///< checks the number of elements, which changes when workers share them
  bool is_shard_hint = false;   ///< waits for the numbers that AutoShardPolicy::Hint fills in
  bool is_measured = true;      ///< has a line in reports of StageMeter
  std::optional<AutoShardPolicy> policy = std::nullopt;  ///< how workers should share what is below

  /// Of a stage that chooses, orders or rewrites its inputs' elements, and computes none of those it passes over.
  static StageTraits passing_over(Elements elements) {
    return {.source = Source::Inputs, .elements = elements, .passes_over = true, .runs_functions = false};
  }
  bool is_shuffle() const { return elements == Elements::Picked && only_buffers; }
  bool makes_batches() const { return elements == Elements::Stacked || elements == Elements::Padded; }
  /// Whether there is one element for each of the input's, in its place.
  bool is_one_to_one() const {
    return elements == Elements::Mapped || elements == Elements::Rewritten || elements == Elements::Same;
  }
};

}  // namespace lockstep::data
