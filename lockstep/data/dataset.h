#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/codec.h"
#include "lockstep/data/loop_cursor.h"
#include "lockstep/data/pipeline_iterator.h"
#include "lockstep/data/row_random.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {

/// The type of a batch of T: `Dataset<T>::batch` returns a `Dataset<Batch<T>>`. Structures of tensors keep their type;
/// byte strings become Strings, and numbers become tensors.
template <class T>
using Batch = detail::MappedLeaves<detail::BatchLeaf, T>;
/// What a row of a batch of T is, as `unbatch` gives it.
template <class T>
using Row = detail::MappedLeaves<detail::RowLeaf, T>;

namespace detail {

/// Whether `f` takes the parts of a pair or tuple, followed by `More`.
template <class F, class T, class... More>
constexpr bool takes_parts() {
  if constexpr (kind_v<T> == StructureKind::Tuple) return []<std::size_t... I>(std::index_sequence<I...>) {
      return std::is_invocable_v<F&, std::tuple_element_t<I, T>..., More&...>;
    }
  (std::make_index_sequence<std::tuple_size_v<T>>{});
  else return false;
}

/// Calls `f(value, more...)`, or `f(a, b, more...)` for a pair or tuple that `f` takes in parts.
template <class F, class T, class... More>
decltype(auto) call(F& f, T value, More&... more) {
  if constexpr (std::is_invocable_v<F&, T, More&...>)
    return f(std::move(value), more...);
  else if constexpr (takes_parts<F, T, More...>())
    return std::apply([&](auto&&... parts) -> decltype(auto) { return f(std::move(parts)..., more...); },
                      std::move(value));
  else
    static_assert(
        takes_parts<F, T, More...>(),
        "the function does not take an element of this dataset, for map_with_random with a RowRandom& behind");
}

/// Converts a predicate's result, a bool or a one-element tensor, to bool.
template <class Answer>
bool as_bool(const Answer& answer) {
  if constexpr (std::is_same_v<Answer, at::Tensor>)
    return read_integer(answer, 0) != 0;
  else
    return static_cast<bool>(answer);
}

template <class F, class T, class... More>
using Result = std::remove_cvref_t<decltype(call(std::declval<F&>(), std::declval<T>(), std::declval<More&>()...))>;

}  // namespace detail

/// One pass over a dataset, element by element.
///
///     auto it = dataset.iterator();
///     while (auto element = it.next()) use(*element);
///
///     const std::string saved = it.state().serialize();  // in another run: it.load_state(IteratorState::parse(saved))
template <class T>
class DatasetIterator {
 public:
  explicit DatasetIterator(PipelineIterator pipeline) : pipeline_(std::move(pipeline)) {}

  /// The next element; none at the end.
  std::optional<T> next() {
    if (!pipeline_.next(element_)) return std::nullopt;
    return decode<T>(element_);
  }
  /// Skips up to `count` elements, without computing them if the stages allow it; returns how many there were.
  std::int64_t skip(std::int64_t count) { return pipeline_.skip(count); }
  std::int64_t consumed() const { return pipeline_.consumed(); }
  /// The position after the last element taken: seeds and counts, never elements.
  IteratorState state() const { return pipeline_.state(); }
  /// Continues from `state`, in this or another program that builds the same dataset.
  void load_state(const IteratorState& state) { pipeline_.load_state(state); }

 private:
  PipelineIterator pipeline_;
  Element element_;
};

/// A description of data and how to prepare it: a source with stages on top. Immutable and cheap to copy; every stage
/// returns a new dataset. Names and meaning are tf.data's.
///
///     auto batches = from_tensor_slices(std::pair{images, labels}).shuffle(10'000).batch(64).prefetch(2);
///     for (const auto& [image, label] : batches) ...
///
/// `T` is what an element is: a tensor, a byte string, or any structure of them (tuples, vectors, maps, plain structs).
template <class T>
class Dataset {
 public:
  using value_type = T;

  /// An empty dataset to assign to; it cannot be read, and stages cannot be added.
  Dataset() = default;
  explicit Dataset(StagePtr stage) : stage_(std::move(stage)) {}

  /// FailedPrecondition if there is none, as in a default-constructed `Dataset`.
  const StagePtr& stage() const { return require_stage(stage_); }
  Cardinality cardinality() const { return cardinality_of(*stage()); }
  ElementSpec element_spec() const { return element_spec_of(*stage()); }
  /// The pipeline as a tree, one line for each stage.
  std::string to_string() const { return print_tree(*stage()); }

  // ---- one element in, one element out

  /// Applies `f` to every element, or `f(a, b)` to a pair. Runs without gradients, on the reading thread unless
  /// `parallel_calls` is set.
  ///
  ///     digits.map([](Digits d) { d.image = d.image / 255; return d; }, {.parallel_calls = 4})
  template <class F>
  auto map(F f, MapOptions options = {}) const {
    using U = detail::Result<F, T>;
    MapFunction function = [f = std::move(f)](Element& element) mutable {
      encode<U>(detail::call(f, decode<T>(element)), element);
    };
    return Dataset<U>(make_map(stage(), std::move(function), spec_of_type<U>(), std::move(options)));
  }

  /// `f(element, random)`, or `f(a, b, random)` for a pair. `random` (RowRandom) depends only on seed, pass and row, so
  /// results are the same with any number of threads.
  template <class F>
  auto map_with_random(F f, MapOptions options = {}) const {
    using U = detail::Result<F, T, RowRandom>;
    KeyedMapFunction function = [f = std::move(f)](Element& element, std::uint64_t key) mutable {
      RowRandom random(key);
      encode<U>(detail::call(f, decode<T>(element), random), element);
    };
    return Dataset<U>(make_map(stage(), std::move(function), spec_of_type<U>(), std::move(options)));
  }

  /// A map with state: `f(state, element)` returns the new state and the result as a pair.
  template <class S, class F>
  auto scan(S initial, F f, SpecFunction spec = nullptr) const {
    using U = typename std::remove_cvref_t<std::invoke_result_t<F&, S, T>>::second_type;
    Element state;
    encode<S>(std::move(initial), state);
    ScanFunction function = [f = std::move(f)](Element& carried, Element& element) mutable {
      Element before = own_copy(carried);  // the state is kept if f throws, even after f wrote into it
      auto [next, result] = f(decode<S>(before), decode<T>(element));
      encode<S>(std::move(next), carried);
      encode<U>(std::move(result), element);
      element = own_copy(std::move(element));  // result and state may be the same tensor
    };
    return Dataset<U>(make_scan(stage(), std::move(state), std::move(function), spec_of_type<U>(), std::move(spec)));
  }

  /// (0, first), (1, second), ...
  Dataset<std::pair<at::Tensor, T>> enumerate(std::int64_t start = 0) const {
    return Dataset<std::pair<at::Tensor, T>>(make_enumerate(stage(), start));
  }

  // ---- choosing and ordering

  /// Random order through a buffer: each element is chosen at random from the next `buffer_size`.
  Dataset shuffle(std::int64_t buffer_size, ShuffleOptions options = {}) const {
    return Dataset(make_shuffle(stage(), buffer_size, options));
  }
  Dataset repeat(std::int64_t count = -1) const { return Dataset(make_repeat(stage(), count)); }
  Dataset take(std::int64_t count) const { return Dataset(make_take(stage(), count)); }
  Dataset skip(std::int64_t count) const { return Dataset(make_skip(stage(), count)); }
  /// Elements index, index + shards, ...
  Dataset shard(std::int64_t shards, std::int64_t index) const { return Dataset(make_shard(stage(), shards, index)); }
  template <class F>
  Dataset filter(F predicate) const {
    return Dataset(make_filter(stage(), erased_predicate(std::move(predicate))));
  }
  template <class F>
  Dataset take_while(F predicate) const {
    return Dataset(make_take_while(stage(), erased_predicate(std::move(predicate))));
  }
  /// Drops elements equal to an earlier one.
  Dataset unique() const { return Dataset(make_distinct(stage())); }
  /// Drops elements whose computation throws, and counts them.
  Dataset ignore_errors(IgnoreErrorsOptions options = {}) const {
    return Dataset(make_ignore_errors(stage(), std::move(options)));
  }

  // ---- datasets of datasets

  /// The elements of the datasets that `f(element)` returns, concatenated.
  template <class F>
  auto flat_map(F f, SpecFunction spec = nullptr) const {
    using U = typename detail::Result<F, T>::value_type;
    return Dataset<U>(
        make_interleave(stage(), erased_expansion(std::move(f)), spec_of_type<U>(), std::nullopt, std::move(spec)));
  }
  /// As flat_map, but reads several datasets in turn.
  template <class F>
  auto interleave(F f, InterleaveOptions options = {}) const {
    using U = typename detail::Result<F, T>::value_type;
    return Dataset<U>(make_interleave(stage(), erased_expansion(std::move(f)), spec_of_type<U>(), std::move(options)));
  }
  /// Datasets of `size` elements each; use flat_map to make batches of them.
  Dataset<Dataset<T>> window(std::int64_t size, WindowOptions options = {}) const {
    return Dataset<Dataset<T>>(make_window(stage(), size, options));
  }

  // ---- batches

  /// Stacks `size` elements into one with one more dimension.
  auto batch(std::int64_t size, BatchOptions options = {}) const {
    check_batches();
    return Dataset<Batch<T>>(make_batch(stage(), size, options));
  }
  /// Batches of rows of different shapes, padded with zeros or `padding_values`.
  auto padded_batch(std::int64_t size, PaddedBatchOptions options = {}) const {
    check_batches();
    return Dataset<Batch<T>>(make_padded_batch(stage(), size, std::move(options)));
  }
  /// The rows of batches.
  auto unbatch() const {
    static_assert(detail::has_rows_v<T>,
                  "rows of this struct are not the struct again: Strings become byte strings; "
                  "map it to a std::tuple first");
    return Dataset<Row<T>>(make_unbatch(stage()));
  }
  /// Regroups the rows of batches into a cycle of sizes, across batch borders. A size of 0 makes an empty batch shaped
  /// like the rows; it is an error if neither the spec nor a row gives that shape.
  Dataset rebatch(std::vector<std::int64_t> sizes, bool drop_remainder = false) const {
    require_rows(element_spec(), "rebatch");
    return Dataset(make_rebatch(stage(), std::move(sizes), drop_remainder));
  }
  Dataset rebatch(std::int64_t size, bool drop_remainder = false) const {
    return rebatch(std::vector<std::int64_t>{size}, drop_remainder);
  }

  // ---- several datasets

  /// The elements of this dataset, then those of `other`.
  Dataset concatenate(const Dataset& other) const { return Dataset(make_concatenate(stage(), other.stage())); }

  // ---- running

  /// Remembers the elements of the first complete pass: in memory, or in a file.
  Dataset cache(std::string path = "") const { return Dataset(make_cache(stage(), std::move(path))); }
  /// Reads up to `buffer_size` elements ahead on a thread; -1 chooses a size.
  Dataset prefetch(std::int64_t buffer_size = -1) const { return Dataset(make_prefetch(stage(), buffer_size)); }
  /// Declares how many elements there are, and checks it at the end.
  Dataset assert_cardinality(Cardinality expected) const { return Dataset(make_assert_cardinality(stage(), expected)); }
  /// Options for `distribute`.
  Dataset with_options(DatasetOptions options) const { return Dataset(make_with_options(stage(), options)); }

  /// `f(*this)`, for functions that add several stages.
  template <class F>
  auto apply(F&& f) const {
    return std::forward<F>(f)(*this);
  }

  // ---- reading

  /// Starts the next pass over this dataset; shuffles with `reshuffle_each_iteration` change their order. Stages count
  /// passes, so datasets built on this one share its count.
  ///
  ///     dataset.iterator()                             // as a loop does
  ///     dataset.iterator({.meter = meter})             // the same elements, measured
  ///     dataset.iterator({.job_seed = 1, .epoch = 0})  // always the same elements
  DatasetIterator<T> iterator(const PassOptions& options = {}) const {
    return DatasetIterator<T>(PipelineIterator(stage(), options));
  }

  using Cursor = LoopCursor<T, DatasetIterator<T>>;  ///< the iterator of a range-based `for`
  Cursor begin() const { return Cursor(iterator()); }
  typename Cursor::End end() const { return {}; }

  /// All elements of one pass; for tests and small data.
  std::vector<T> to_vector() const {
    std::vector<T> all;
    for (auto it = iterator(); auto element = it.next();) all.push_back(std::move(*element));
    return all;
  }

 private:
  template <class F>
  static Predicate erased_predicate(F f) {
    return [f = std::move(f)](const Element& element) mutable {
      Element copy = element;
      return detail::as_bool(detail::call(f, decode<T>(copy)));
    };
  }
  template <class F>
  static Expansion erased_expansion(F f) {
    return [f = std::move(f)](Element&& element) mutable { return detail::call(f, decode<T>(element)).stage(); };
  }

  static void check_batches() {
    static_assert(detail::can_be_batched_v<T>,
                  "a batch of this struct is not the struct again: its byte strings become Strings and its numbers "
                  "tensors; make the fields tensors, or map it to a std::tuple first");
  }

  StagePtr stage_;
};

// ---- sources

/// 0, 1, ... stop - 1 as int64 scalars.
LOCKSTEP_EXPORT Dataset<at::Tensor> range(std::int64_t stop);
LOCKSTEP_EXPORT Dataset<at::Tensor> range(std::int64_t start, std::int64_t stop, std::int64_t step = 1);

/// A single element: the structure itself. The tensors are not copied; see from_tensor_slices.
template <class T>
Dataset<T> from_tensors(T value) {
  Element element;
  encode<T>(std::move(value), element);
  return Dataset<T>(make_from_tensors(std::move(element)));
}

/// One element per row: every tensor of the structure is cut along its first dimension.
///
///     from_tensor_slices(std::pair{images, labels})        // Dataset<pair<Tensor, Tensor>>
///     from_tensor_slices(std::vector{a, b, c})             // a vector of tensors is stacked: Dataset<Tensor>
///
/// Contiguous tensors are not copied, since data in memory is often most of what a program holds: writing into them
/// later changes the data. Pass `tensor.clone()` to keep them apart. The elements that a dataset returns are always
/// copies.
template <class T>
auto from_tensor_slices(T value) {
  static_assert(detail::has_rows_v<T>,
                "rows of this struct are not the struct again: Strings become byte strings; "
                "use a std::tuple");
  Element element;
  encode<T>(std::move(value), element);
  return Dataset<Row<T>>(make_slices(std::move(element)));
}
LOCKSTEP_EXPORT Dataset<at::Tensor> from_tensor_slices(const std::vector<at::Tensor>& slices);
LOCKSTEP_EXPORT Dataset<std::string> from_tensor_slices(std::vector<std::string> values);

/// Elements of a function. `make` starts a pass: it returns a function that returns the next element, or nothing at the
/// end.
///
///     from_generator([] { return [i = 0]() mutable -> std::optional<at::Tensor> { ... }; })
template <class Make>
auto from_generator(Make make, GeneratorOptions options = {}) {
  using T = typename std::remove_cvref_t<decltype(make()())>::value_type;
  auto start = [make = std::move(make)]() -> Generator {
    return [step = make()](Element& element) mutable {
      std::optional<T> value = step();
      if (value) encode<T>(std::move(*value), element);
      return value.has_value();
    };
  };
  return Dataset<T>(make_generator(std::move(start), spec_of_type<T>(), std::move(options)));
}

// ---- several datasets

/// Elements of two datasets as pairs, until the shorter one ends.
template <class A, class B>
Dataset<std::pair<A, B>> zip(const Dataset<A>& a, const Dataset<B>& b) {
  return Dataset<std::pair<A, B>>(make_zip(std::vector<StagePtr>{a.stage(), b.stage()}));
}
template <class A, class B, class C, class... More>
auto zip(const Dataset<A>& a, const Dataset<B>& b, const Dataset<C>& c, const Dataset<More>&... more) {
  return Dataset<std::tuple<A, B, C, More...>>(
      make_zip(std::vector<StagePtr>{a.stage(), b.stage(), c.stage(), more.stage()...}));
}

/// Each element from one of the datasets, chosen at random with the given weights.
template <class T>
Dataset<T> sample_from_datasets(const std::vector<Dataset<T>>& datasets, SampleOptions options = {}) {
  std::vector<StagePtr> stages;
  for (const Dataset<T>& dataset : datasets) stages.push_back(dataset.stage());
  return Dataset<T>(make_sample(std::move(stages), std::move(options)));
}
template <class T>
Dataset<T> sample_from_datasets(std::initializer_list<Dataset<T>> datasets, SampleOptions options = {}) {
  return sample_from_datasets(std::vector<Dataset<T>>(datasets), std::move(options));
}

}  // namespace lockstep::data
