#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/codec.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_cursor.h"
#include "lockstep/data/distribute/global_rows.h"
#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/files/npy_tensor.h"
#include "lockstep/data/input_context.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/per_replica.h"

namespace lockstep {

/// One pass over a distributed dataset: a PerReplica for each step.
///
///     auto steps = batches.iterator();
///     while (auto batch = steps.next()) strategy.run(train_step, *batch);
template <class T>
class DistributedIterator {
 public:
  explicit DistributedIterator(data::DistributedCursor cursor) : cursor_(std::move(cursor)) {}

  /// The next step; nothing at the end.
  std::optional<PerReplica<T>> next() { return typed(cursor_.next()); }
  /// The next step; OutOfRange at the end.
  PerReplica<T> get_next() {
    auto step = next();
    if (!step) data::throw_no_more_data();
    return std::move(*step);
  }
  /// Waits until `next` would return at once for this worker, at most `limit`; returns whether it would.
  bool wait_for(std::chrono::milliseconds limit) { return cursor_.wait_for(limit); }
  /// As `next`, but a step in which only some replicas have data counts even if all shapes are known beforehand;
  /// replicas without data get an empty batch.
  std::optional<PerReplica<T>> get_next_as_optional() { return typed(cursor_.next_as_optional()); }

  /// What is known about the elements: dtypes, and shapes for each replica.
  DistributedSpec element_spec() const { return cursor_.spec(); }
  /// As `element_spec`, for the values of `get_next_as_optional`.
  DistributedSpec optional_spec() const { return cursor_.optional_spec(); }
  /// The position after the last step taken: seeds and counts, never rows.
  data::IteratorState state() const { return cursor_.state(); }
  /// Continues after the last step taken before `state` was read, in this or another program that distributes the same
  /// dataset over the same number of replicas; with Assignment::ByReplica on any number of workers.
  void load_state(const data::IteratorState& state) { cursor_.load_state(state); }
  /// The same position as a part of a snapshot (strategy/snapshot.h): `ls::capture(strategy, {{"batches", iterator}})`.
  /// The iterator must outlive the result.
  friend std::shared_ptr<Stateful> state_of(DistributedIterator& iterator) {
    return data::state_of_cursor(iterator.cursor_);
  }

 private:
  std::optional<PerReplica<T>> typed(std::optional<data::DistributedCursor::Values> values) {
    if (!values) return std::nullopt;
    std::vector<T> parts;
    for (data::Element& value : *values) parts.push_back(data::decode<T>(value));
    PerReplica<T> batch(std::move(parts));
    batch.set_batch_rows(cursor_.batch_rows());
    return batch;
  }

  data::DistributedCursor cursor_;
};

/// A dataset whose global batches are cut into one batch per replica, read ahead on a thread of its own. Made by
/// `strategy.distribute` or `strategy.distribute_from_function`; it has no transformations, and every loop over it
/// starts a new pass.
///
///     auto batches = strategy.distribute(digits.shuffle(10'000).batch(64));
///     for (const auto& batch : batches) strategy.run(train_step, batch);
template <class T>
class DistributedDataset {
 public:
  using value_type = PerReplica<T>;

  explicit DistributedDataset(data::DistributedInputPtr input) : input_(std::move(input)) {}

  /// Starts the next pass. With `{.meter = meter}` the report has a line for the iterator (steps, time spent waiting
  /// for `next`, how full its buffer was) above the lines of this worker's stages.
  DistributedIterator<T> iterator(const data::PassOptions& options = {}) const {
    return DistributedIterator<T>(data::DistributedCursor(input_, options));
  }

  /// The shapes and dtypes known beforehand; `strategy.run` takes them as a signature.
  DistributedSpec element_spec() const { return data::spec_of(*input_); }
  /// How many steps a pass has. (TensorFlow returns the number of batches before they are cut.)
  data::Cardinality cardinality() const { return data::steps_of(*input_); }
  /// Whether a last step in which only some replicas have data is completed with empty batches.
  bool handles_partial_steps() const { return data::handles_partial_steps(*input_); }
  /// Which worker reads what, and why: one line per worker, without reading any data.
  std::string plan() const { return data::plan_of(*input_); }
  /// Why an iterator's position cannot be saved exactly, if so: "a generator that cannot replay".
  std::optional<std::string> position_obstacle() const { return data::position_obstacle_of(*input_); }

  using Cursor = data::LoopCursor<PerReplica<T>, DistributedIterator<T>>;  ///< the iterator of a range-based `for`
  Cursor begin() const { return Cursor(iterator()); }
  typename Cursor::End end() const { return {}; }

 private:
  data::DistributedInputPtr input_;
};

}  // namespace lockstep

namespace lockstep::data {

/// The untyped parts of Strategy::distribute and distribute_from_function.
LOCKSTEP_EXPORT DistributedInputPtr distribute_stage(Strategy& strategy, const StagePtr& dataset,
                                                     const InputOptions& options);
/// The contexts to call `make` with; its pipelines then go to `distribute_made`.
LOCKSTEP_EXPORT std::vector<InputContext> contexts_for_function(Strategy& strategy, const InputOptions& options);
LOCKSTEP_EXPORT DistributedInputPtr distribute_made(Strategy& strategy, const std::vector<StagePtr>& pipelines,
                                                    const InputOptions& options);
/// The untyped part of Strategy::split.
LOCKSTEP_EXPORT std::vector<Element> split_batch(Strategy& strategy, const Element& batch);

}  // namespace lockstep::data

namespace lockstep {

template <class T>
DistributedDataset<T> Strategy::distribute(const data::Dataset<T>& dataset, const InputOptions& options) {
  return DistributedDataset<T>(data::distribute_stage(*this, dataset.stage(), options));
}

template <class T>
DistributedDataset<T> Strategy::distribute(const data::Dataset<T>& dataset) {
  return distribute(dataset, InputOptions{});
}

template <class F>
auto Strategy::distribute_from_function(F&& make, const InputOptions& options) {
  using Made = std::remove_cvref_t<std::invoke_result_t<F&, const InputContext&>>;
  static_assert(data::detail::is_dataset_v<Made>, "the function given to distribute_from_function returns a Dataset");
  std::vector<data::StagePtr> pipelines;
  for (const InputContext& context : data::contexts_for_function(*this, options)) {
    pipelines.push_back(make(context).stage());
  }
  return DistributedDataset<typename Made::value_type>(data::distribute_made(*this, pipelines, options));
}

template <class F>
auto Strategy::distribute_from_function(F&& make) {
  return distribute_from_function(std::forward<F>(make), InputOptions{});
}

template <class T>
PerReplica<T> Strategy::split(const T& batch) {
  static_assert(!data::detail::is_list_of_examples_v<T>,
                "strategy.split cuts a batch, and this is a list of examples: stack them with "
                ".map(torch::data::transforms::Stack<>()) on the dataset of the DataLoader");
  data::Element leaves;
  data::encode<T>(batch, leaves);
  std::vector<data::Element> parts = data::split_batch(*this, leaves);
  return PerReplica<T>::generate(parts.size(), [&](std::size_t k) -> T { return data::decode<T>(parts[k]); });
}

template <class T>
auto Strategy::make_numpy_dataset(T arrays) {
  detail::require_cross_replica(*this, "make_numpy_dataset");
  return data::from_tensor_slices(map_structure(
      [](const auto& array) -> at::Tensor {
        if constexpr (std::is_convertible_v<decltype(array), std::string>)
          return data::npy_tensor(array);
        else
          return array;
      },
      arrays));
}

namespace data::detail {

/// The names of the leaves of `arguments`, for messages: "argument 0['image']".
template <class... Args>
std::vector<std::string> leaf_names(const Args&... arguments) {
  std::vector<std::string> names;
  int number = 0;
  const auto add = [&](const auto& argument) {
    for_each_leaf_with_path(
        argument, [&](const std::string& path, const auto&) { names.push_back(str("argument ", number, path)); });
    ++number;
  };
  (add(arguments), ...);
  return names;
}

}  // namespace data::detail

template <class F, class... Args>
auto Strategy::run(const DistributedSpec& signature, F&& f, const Args&... args) {
  data::check_signature_width(signature, num_local_replicas());
  detail::require_components(num_local_replicas(), args...);
  for (int k = 0; k < num_local_replicas(); ++k) {
    std::vector<data::Element> leaves;
    const auto add = [&](const auto& argument) {
      data::encode<std::remove_cvref_t<decltype(argument)>>(argument, leaves.emplace_back());
    };
    (add(select_component(args, k)), ...);
    data::check_signature(signature, leaves, k, [&] { return data::detail::leaf_names(select_component(args, k)...); });
  }
  return run(std::forward<F>(f), args...);
}

}  // namespace lockstep
