#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/codec.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/map.h"
#include "lockstep/data/stages/sources.h"

namespace lockstep::data {

/// What a batch of T is: `Dataset<T>::batch` gives a `Dataset<Batch<T>>`. Structures of tensors stay what they are;
/// byte strings become Strings, numbers tensors.
template <class T>
using Batch = typename detail::BatchOf<T>::type;
template <class T>
using Row = typename detail::RowOf<T>::type;

namespace detail {

template <class F, class T>
constexpr bool takes_parts() {
  if constexpr (kind_v<T> == StructureKind::Tuple) return []<std::size_t... I>(std::index_sequence<I...>) {
      return std::is_invocable_v<F&, std::tuple_element_t<I, T>...>;
    }
  (std::make_index_sequence<std::tuple_size_v<T>>{});
  else return false;
}

/// Calls `f(value)`, or `f(a, b)` for a pair or tuple that `f` takes in parts.
template <class F, class T>
decltype(auto) call(F& f, T value) {
  if constexpr (std::is_invocable_v<F&, T>)
    return f(std::move(value));
  else if constexpr (takes_parts<F, T>())
    return std::apply(f, std::move(value));
  else
    static_assert(takes_parts<F, T>(), "the function does not take an element of this dataset");
}

template <class F, class T>
using Result = std::remove_cvref_t<decltype(call(std::declval<F&>(), std::declval<T>()))>;

}  // namespace detail

/// One pass over a dataset, element by element.
///
///     auto it = dataset.iterate();
///     while (auto element = it.next()) use(*element);
template <class T>
class DatasetIterator {
 public:
  explicit DatasetIterator(PipelineIterator pipeline) : pipeline_(std::move(pipeline)) {}

  std::optional<T> next() {
    if (!pipeline_.next(element_)) return std::nullopt;
    return decode<T>(element_);
  }
  /// Leaves out up to `count` elements, without computing them where stages allow; says how many there were.
  std::int64_t skip(std::int64_t count) { return pipeline_.skip(count); }
  std::int64_t consumed() const { return pipeline_.consumed(); }
  /// The place behind the last element taken; see Dataset::resume.
  IteratorState save() const { return pipeline_.save(); }

 private:
  PipelineIterator pipeline_;
  Element element_;
};

/// A description of data and how to prepare it: a source and stages on top of it. Immutable and cheap to copy; every
/// stage gives a new dataset. Names and meaning are those of tf.data.
///
///     auto batches = from_tensor_slices(std::pair{images, labels}).shuffle(10'000).batch(64).prefetch(2);
///     for (const auto& [image, label] : batches) ...
///
/// `T` is what an element is: a tensor, a byte string, or any structure of them (tuples, vectors, maps, plain structs).
template <class T>
class Dataset {
 public:
  using value_type = T;

  Dataset() = default;
  explicit Dataset(StagePtr stage) : stage_(std::move(stage)) {}

  const StagePtr& stage() const { return stage_; }
  Cardinality cardinality() const { return stage_->cardinality(); }
  ElementSpec element_spec() const { return stage_->element_spec(); }
  std::string to_string() const { return print_tree(*stage_); }

  // ---- stages, one element for one

  /// `f` of every element. Runs without gradients, on one thread unless `parallel_calls` are asked for.
  ///
  ///     digits.map([](Digits d) { d.image = d.image / 255; return d; }, {.parallel_calls = 4})
  template <class F>
  auto map(F f, MapOptions options = {}) const {
    using U = detail::Result<F, T>;
    MapFunction function = [f = std::move(f)](Element& element) mutable {
      encode<U>(detail::call(f, decode<T>(element)), element);
    };
    return Dataset<U>(std::make_shared<MapStage>(stage_, std::move(function), spec_of_type<U>(), std::move(options)));
  }

  // ---- batches

  Dataset<Batch<T>> batch(std::int64_t size, BatchOptions options = {}) const {
    return Dataset<Batch<T>>(std::make_shared<BatchStage>(stage_, size, options));
  }

  /// `f(*this)`, for functions that put several stages on a dataset.
  template <class F>
  auto apply(F&& f) const {
    return std::forward<F>(f)(*this);
  }

  // ---- reading

  /// Starts a pass with everything that decides random choices given.
  DatasetIterator<T> iterate(IterationContext context) const {
    return DatasetIterator<T>(PipelineIterator(stage_, std::move(context)));
  }
  /// Starts the next pass over this dataset: shuffles that reshuffle give another order each time.
  DatasetIterator<T> iterate() const {
    return iterate({.job_seed = default_job_seed(), .epoch = passes_->fetch_add(1)});
  }
  /// Goes on where `state` was saved, in this or another program that builds the same dataset.
  DatasetIterator<T> resume(const IteratorState& state) const {
    return DatasetIterator<T>(PipelineIterator::restore(stage_, state));
  }

  struct End {};
  class Cursor {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;

    explicit Cursor(DatasetIterator<T> iterator) : iterator_(std::move(iterator)), current_(iterator_.next()) {}
    const T& operator*() const { return *current_; }
    const T* operator->() const { return &*current_; }
    Cursor& operator++() {
      current_.reset();  // lets go of the batch first, so that its memory can be used for the next
      current_ = iterator_.next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Cursor& cursor, End) { return !cursor.current_; }

   private:
    DatasetIterator<T> iterator_;
    std::optional<T> current_;
  };
  Cursor begin() const { return Cursor(iterate()); }
  End end() const { return {}; }

  /// All elements of one pass; for tests and small data.
  std::vector<T> to_vector() const {
    std::vector<T> all;
    for (auto it = iterate(); auto element = it.next();) all.push_back(std::move(*element));
    return all;
  }

 private:
  StagePtr stage_;
  std::shared_ptr<std::atomic<std::uint64_t>> passes_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

// ---- sources

/// 0, 1, ... stop - 1 as int64 scalars.
inline Dataset<at::Tensor> range(std::int64_t stop) { return Dataset<at::Tensor>(range(0, stop, 1)); }

/// One element: the structure as it is.
template <class T>
Dataset<T> from_tensors(T value) {
  Element element;
  encode<T>(std::move(value), element);
  return Dataset<T>(std::make_shared<FromTensorsStage>(std::move(element)));
}

/// One element per row: every tensor of the structure is cut along its first dimension.
///
///     from_tensor_slices(std::pair{images, labels})        // Dataset<pair<Tensor, Tensor>>
///     from_tensor_slices(std::vector{a, b, c})             // a vector of tensors is stacked: Dataset<Tensor>
template <class T>
Dataset<Row<T>> from_tensor_slices(T value) {
  Element element;
  encode<T>(std::move(value), element);
  return Dataset<Row<T>>(from_tensor_slices(std::move(element)));
}
inline Dataset<at::Tensor> from_tensor_slices(const std::vector<at::Tensor>& slices) {
  return from_tensor_slices(stack_slices(slices));
}
inline Dataset<std::string> from_tensor_slices(std::vector<std::string> values) {
  return from_tensor_slices(Strings(std::move(values)));
}

/// Elements of a function. `make` starts anew: it returns a function that gives the next element, or nothing at the
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
  return Dataset<T>(std::make_shared<GeneratorStage>(std::move(start), spec_of_type<T>(), std::move(options)));
}

}  // namespace lockstep::data
