#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/auto_shard_policy.h"
#include "lockstep/data/cardinality.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/error_counter.h"

// The options of a dataset's stages.
namespace lockstep::data {

/// What the results of a function look like, given what its inputs look like.
using SpecFunction = std::function<ElementSpec(const ElementSpec&)>;

/// How a `map` runs.
struct MapOptions {
  /// Threads of the pipeline's own that compute at the same time; 0 computes on the thread that asks for elements.
  int parallel_calls = 0;
  /// Whether results keep the order of the input. Without, a slow element does not hold up others, and positions
  /// cannot be saved.
  bool ordered = true;
  /// What the results look like; without it only what their type tells is known.
  SpecFunction spec = nullptr;
  std::string name = {};  ///< in messages and reports
  /// Of `map_with_random`; without it from the job's seed and the place in the pipeline.
  std::optional<std::uint64_t> seed = std::nullopt;
};

/// Options of `shuffle`.
struct ShuffleOptions {
  std::optional<std::uint64_t> seed = std::nullopt;  ///< without: from the job's seed and the place in the pipeline
  bool reshuffle_each_iteration = true;              ///< another order in every pass
};

/// Options of `batch`.
struct BatchOptions {
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows
  int parallel_calls = 0;       ///< only how TensorFlow tells its parallel batch node apart; batches are the same
};

/// Options of `padded_batch`.
struct PaddedBatchOptions {
  /// One for each component: sizes to pad to, -1 for the longest of the batch. Empty: the longest everywhere.
  std::vector<std::optional<std::vector<std::int64_t>>> padded_shapes = {};
  /// One for each component, or one for all, of a value that its type can hold; none: 0.
  std::vector<c10::Scalar> padding_values = {};
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows
};

/// Options of `interleave`.
struct InterleaveOptions {
  int cycle_length = 4;           ///< datasets read in turn
  std::int64_t block_length = 1;  ///< elements taken from one before the next one's turn
  int parallel_calls = 0;         ///< more than 0: each open dataset is read ahead on a thread; the order stays
  SpecFunction spec = nullptr;    ///< what the elements look like; without it only what their type tells is known
};

/// Options of `window`.
struct WindowOptions {
  std::int64_t shift = 0;       ///< elements from the start of a window to the start of the next; 0: its size
  std::int64_t stride = 1;      ///< elements from one to the next within a window
  bool drop_remainder = false;  ///< leaves out windows with fewer elements
};

/// Options of `sample_from_datasets`.
struct SampleOptions {
  std::vector<double> weights = {};                  ///< one for each dataset; none: all the same
  std::optional<std::uint64_t> seed = std::nullopt;  ///< without: from the job's seed and the place in the pipeline
  bool stop_on_empty_dataset = false;                ///< ends with the first dataset that ends
};

/// Options of `ignore_errors`.
struct IgnoreErrorsOptions {
  std::shared_ptr<ErrorCounter> counter = nullptr;  ///< counts what was left out
  bool log = false;                                 ///< a warning for each
  std::int64_t give_up_after = 1000;                ///< errors without an element between them: then the last is thrown
};

/// What is known about a generator.
struct GeneratorOptions {
  /// Every new generator yields the same elements again, so that positions can be saved.
  bool replayable = false;
  /// What the elements look like; without it only what their type tells is known.
  std::optional<ElementSpec> spec = std::nullopt;
  Cardinality cardinality = Cardinality::unknown();  ///< how many elements there are
};

/// What `distribute` should know about a dataset.
struct DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::Auto;  ///< how files or rows are divided among workers
};

}  // namespace lockstep::data
