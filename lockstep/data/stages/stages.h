#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/row_source.h"
#include "lockstep/data/stage_options.h"

// One factory per stage: what Dataset<T> adds to a pipeline with types erased.
namespace lockstep::data {

// ---- queries on a Dataset<T>'s last stage

/// Returns the stage; FailedPrecondition if it is null.
LOCKSTEP_EXPORT const StagePtr& require_stage(const StagePtr& stage);
LOCKSTEP_EXPORT Cardinality cardinality_of(const Stage& stage);
LOCKSTEP_EXPORT ElementSpec element_spec_of(const Stage& stage);

/// The pipeline as a tree, the last stage first:
///
///     prefetch(2)
///     └─ batch(64)
///        └─ shuffle(4096)
///           └─ from_tensor_slices(60000 rows: float32[784], int64[])
///
/// Concatenated datasets appear as siblings.
LOCKSTEP_EXPORT std::string print_tree(const Stage& stage);

// ---- sources

/// One element, once.
LOCKSTEP_EXPORT StagePtr make_from_tensors(Element element);
/// Elements kept in memory, such as a window's.
StagePtr make_elements(std::string kind, std::vector<Element> elements, ElementSpec spec);
/// The rows of a batch: every component is cut along its first dimension.
LOCKSTEP_EXPORT StagePtr make_slices(Element batch);
/// start, start + step, ... as int64 scalars, up to but excluding stop.
LOCKSTEP_EXPORT StagePtr make_range(std::int64_t start, std::int64_t stop, std::int64_t step = 1);

/// The rows of any source that can be read in any order.
struct RowsDescription {
  std::string kind;             ///< "from_npy"
  std::string detail;           ///< what `describe` shows of it
  std::string contents = {};    ///< what tells these rows from others that are described alike, for `identity`
  bool is_list = false;         ///< the elements may be names of files
  bool runs_functions = false;  ///< whether reading a row calls a function of the program
};
/// The rows of `rows`, in order.
LOCKSTEP_EXPORT StagePtr make_rows(RowsDescription description, RowSourcePtr rows, ElementSpec spec);
/// Short lists in full, long ones by their ends and a checksum: "a.rec, b.rec".
LOCKSTEP_EXPORT std::string summary(const Strings& strings);
/// Stacks tensors of equal shape: (n, ...). An error that names the first that differs.
LOCKSTEP_EXPORT at::Tensor stack_slices(const std::vector<at::Tensor>& slices);

/// Writes the next element; false at the end.
using Generator = std::function<bool(Element&)>;
/// What a generator yields; `make` is called for each pass.
LOCKSTEP_EXPORT StagePtr make_generator(std::function<Generator()> make, ElementSpec spec, GeneratorOptions options);

// ---- one element in, one element out

/// Changes an element in place.
using MapFunction = std::function<void(Element&)>;
/// The same, with a key for random numbers: one per (seed, pass, row), whichever thread computes it.
using KeyedMapFunction = std::function<void(Element&, std::uint64_t key)>;
/// `result`: the spec given by the type of the results.
LOCKSTEP_EXPORT StagePtr make_map(StagePtr input, MapFunction function, ElementSpec result, MapOptions options);
LOCKSTEP_EXPORT StagePtr make_map(StagePtr input, KeyedMapFunction function, ElementSpec result, MapOptions options);

/// Changes state and element in place.
using ScanFunction = std::function<void(Element& state, Element& element)>;
/// A map that carries a state from element to element.
LOCKSTEP_EXPORT StagePtr make_scan(StagePtr input, Element initial, ScanFunction function, ElementSpec result,
                                   SpecFunction spec = nullptr);
/// Each element preceded by its number.
LOCKSTEP_EXPORT StagePtr make_enumerate(StagePtr input, std::int64_t start);

// ---- choosing and ordering

/// Keeps a buffer of elements and yields a random one at a time: like tf.data's, uniform over the whole data only if
/// the buffer holds all of it.
LOCKSTEP_EXPORT StagePtr make_shuffle(StagePtr input, std::int64_t buffer_size, ShuffleOptions options = {});
/// The whole input several times; -1 is endless.
LOCKSTEP_EXPORT StagePtr make_repeat(StagePtr input, std::int64_t count);
/// The first `count` elements; -1 for all.
LOCKSTEP_EXPORT StagePtr make_take(StagePtr input, std::int64_t count);
/// All but the first `count` elements; -1 for none.
LOCKSTEP_EXPORT StagePtr make_skip(StagePtr input, std::int64_t count);
/// Elements index, index + shards, ... `make_shard(input, kShardHint, kShardHint)` leaves both to AutoShardPolicy::Hint.
LOCKSTEP_EXPORT StagePtr make_shard(StagePtr input, std::int64_t shards, std::int64_t index);

/// Tests an element without changing it.
using Predicate = std::function<bool(const Element&)>;
/// The elements for which the predicate is true.
LOCKSTEP_EXPORT StagePtr make_filter(StagePtr input, Predicate predicate);
/// The elements before the first for which the predicate is false.
LOCKSTEP_EXPORT StagePtr make_take_while(StagePtr input, Predicate predicate);
/// The first of all equal elements: tensors of one shape, type and contents, or equal byte strings.
LOCKSTEP_EXPORT StagePtr make_distinct(StagePtr input);
/// Drops elements whose computation throws.
LOCKSTEP_EXPORT StagePtr make_ignore_errors(StagePtr input, IgnoreErrorsOptions options);

// ---- batches

/// Stacks `size` elements into one with one more dimension.
LOCKSTEP_EXPORT StagePtr make_batch(StagePtr input, std::int64_t size, BatchOptions options = {});
/// Batches of rows of different shapes: shorter ones are padded.
LOCKSTEP_EXPORT StagePtr make_padded_batch(StagePtr input, std::int64_t size, PaddedBatchOptions options);
/// The rows of batches, one by one.
LOCKSTEP_EXPORT StagePtr make_unbatch(StagePtr input);
/// Regroups the rows of `batches` into an endless cycle of sizes, across batch borders.
LOCKSTEP_EXPORT StagePtr make_rebatch(StagePtr batches, std::vector<std::int64_t> sizes, bool drop_remainder = false);

// ---- several datasets, and datasets of datasets

/// Elements of several datasets as tuples, until the shortest ends.
LOCKSTEP_EXPORT StagePtr make_zip(std::vector<StagePtr> inputs);
LOCKSTEP_EXPORT StagePtr make_concatenate(StagePtr first, StagePtr second);
/// Each element from one of several datasets, chosen at random.
LOCKSTEP_EXPORT StagePtr make_sample(std::vector<StagePtr> inputs, SampleOptions options);

/// Makes a dataset of an element.
using Expansion = std::function<StagePtr(Element&&)>;
/// The elements of the datasets that a function makes of elements: several datasets in turn, or without options one
/// after another (`flat_map`).
LOCKSTEP_EXPORT StagePtr make_interleave(StagePtr input, Expansion expansion, ElementSpec result,
                                         std::optional<InterleaveOptions> options, SpecFunction spec = nullptr);
/// Datasets of `size` elements each.
LOCKSTEP_EXPORT StagePtr make_window(StagePtr input, std::int64_t size, WindowOptions options);

// ---- running

/// Remembers the elements of the first complete pass, in memory or in a file, so that later passes do not compute them.
/// The pass that fills it reads every element, even those a stage above skips, since the cache must be complete. A pass
/// that stops early, or in which an element fails, stores nothing.
LOCKSTEP_EXPORT StagePtr make_cache(StagePtr input, std::string path = "");
/// Reads up to `buffer_size` elements ahead on a thread of its own; 0 reads none, -1 two.
LOCKSTEP_EXPORT StagePtr make_prefetch(StagePtr input, std::int64_t buffer_size);
/// Declares the number of elements, and checks it at the end.
LOCKSTEP_EXPORT StagePtr make_assert_cardinality(StagePtr input, Cardinality expected);
LOCKSTEP_EXPORT StagePtr make_with_options(StagePtr input, DatasetOptions options);

}  // namespace lockstep::data
