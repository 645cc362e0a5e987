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

/// The spec of a function's results, given the spec of its inputs.
using SpecFunction = std::function<ElementSpec(const ElementSpec&)>;

/// How a `map` runs.
struct MapOptions {
  /// The pipeline's own threads that compute at the same time; 0 computes on the thread that requests elements.
  int parallel_calls = 0;
  /// Whether results keep the order of the input. If not, a slow element does not hold up others, and positions cannot
  /// be saved.
  bool ordered = true;
  /// The spec of the results; without it, only what their type determines is known.
  SpecFunction spec = nullptr;
  std::string name = {};  ///< in messages and reports
  /// Seed of `map_with_random`; without it derived from the job's seed and the stage's position in the pipeline.
  std::optional<std::uint64_t> seed = std::nullopt;
};

/// Options of `shuffle`.
struct ShuffleOptions {
  std::optional<std::uint64_t> seed = std::nullopt;  ///< without: derived from the job's seed and the stage's position
                                                     ///< in the pipeline
  bool reshuffle_each_iteration = true;              ///< a new order in every pass
};

/// Options of `batch`.
struct BatchOptions {
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows
  int parallel_calls = 0;       ///< distinguishes TensorFlow's parallel batch node; batches are the same
};

/// Options of `padded_batch`.
struct PaddedBatchOptions {
  /// One per component: sizes to pad to, -1 for the longest in the batch. Empty: the longest everywhere.
  std::vector<std::optional<std::vector<std::int64_t>>> padded_shapes = {};
  /// One per component, or one for all, representable in the component's type; none: 0.
  std::vector<c10::Scalar> padding_values = {};
  bool drop_remainder = false;  ///< leaves out a last batch with fewer rows
};

/// Options of `interleave`.
struct InterleaveOptions {
  int cycle_length = 4;           ///< datasets read in turn
  std::int64_t block_length = 1;  ///< elements taken from one dataset before the next
  int parallel_calls = 0;         ///< more than 0: each open dataset is read ahead on a thread; the order stays
  SpecFunction spec = nullptr;    ///< the elements' spec; without it, only what their type determines
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

/// Properties of a generator.
struct GeneratorOptions {
  /// Every new generator yields the same elements, so that positions can be saved.
  bool replayable = false;
  /// What the elements look like; without it only what their type tells is known.
  std::optional<ElementSpec> spec = std::nullopt;
  Cardinality cardinality = Cardinality::unknown();  ///< how many elements there are
};

/// Hints for `distribute`.
struct DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::Auto;  ///< how files or rows are divided among workers
};

}  // namespace lockstep::data
