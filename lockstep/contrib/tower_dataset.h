#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/contrib/tower_values.h"
#include "lockstep/contrib/tower_words.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/data/distribute/own_elements.h"

namespace lockstep::contrib {

namespace detail {

/// Throws: `get_next` before `initialize`.
[[noreturn]] LOCKSTEP_EXPORT void throw_not_initialized();

}  // namespace detail

/// A pass over a distributed dataset: one whole element for each tower and step. Copies refer to the same pass, as in
/// Python: the result of `run_steps_on_dataset` contains one.
template <class T>
class TowerIterator {
 public:
  /// `whole_size`: as in PerReplica.
  TowerIterator(std::size_t whole_size, DistributedDataset<T> dataset)
      : whole_size_(whole_size), dataset_(std::move(dataset)), pass_(std::make_shared<Pass>()) {}
  TowerIterator(const TowerIterator&) = default;  // and no move, which would leave one without a pass
  TowerIterator& operator=(const TowerIterator&) = default;

  /// Begins a pass, or restarts.
  void initialize() {
    const detail::TowerWords words;
    data::require_outside_replicas("initialize");
    pass_->emplace(dataset_.iterator());
  }
  /// TensorFlow 1 runs this in a session.
  void initializer() { initialize(); }

  /// OutOfRange unless every tower has an element: the rest is lost.
  PerDevice<T> get_next() {
    if (!*pass_) detail::throw_not_initialized();
    const detail::TowerWords words;
    PerDevice<T> next = (*pass_)->get_next();
    next.set_whole_size(whole_size_);
    return next;
  }

 private:
  std::size_t whole_size_;
  DistributedDataset<T> dataset_;
  using Pass = std::optional<DistributedIterator<T>>;
  std::shared_ptr<Pass> pass_;
};

/// The result of `distribute_dataset`.
template <class T>
class TowerDataset {
 public:
  TowerDataset(std::size_t whole_size, DistributedDataset<T> dataset)
      : whole_size_(whole_size), dataset_(std::move(dataset)) {}

  /// An iterator whose pass has begun.
  TowerIterator<T> make_one_shot_iterator() const {
    TowerIterator<T> iterator(whole_size_, dataset_);
    iterator.initialize();
    return iterator;
  }
  /// An iterator to call `initialize` on.
  TowerIterator<T> make_initializable_iterator() const { return TowerIterator<T>(whole_size_, dataset_); }

 private:
  std::size_t whole_size_;
  DistributedDataset<T> dataset_;
};

namespace detail {

template <class F>
concept GivesDataset = requires(F& f) {
  requires data::detail::is_dataset_v<std::decay_t<decltype(f())>>;
};

/// Deals whole elements to the towers in turn; a last step without an element for each tower is dropped. `is_own`: the
/// dataset is this worker's rather than shared by all workers.
template <class T>
TowerDataset<T> distribute_elements(Strategy& core, const data::Dataset<T>& dataset, bool is_own, bool prefetch) {
  const InputOptions options{.per_replica_buffer_size = prefetch ? 1 : 0};
  const auto own = is_own ? dataset : data::own_elements(core, dataset);
  const auto input = data::distribute_made(core, {own.stage()}, options);
  return TowerDataset<T>(whole_size_of(core), DistributedDataset<T>(data::only_whole_steps(input)));
}

}  // namespace detail
}  // namespace lockstep::contrib
