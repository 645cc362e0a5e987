#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "lockstep/values/distributed_values.h"
#include "lockstep/values/write_value.h"

namespace lockstep {

/// The origin of a batch in its distributed dataset, so that workers notice if they train on different ones.
struct BatchPlace {
  std::int64_t pass = -1;  ///< the number of the pass; -1: unknown
  std::int64_t step = -1;  ///< counted from 1; -1: unknown
};

/// Row counts of one step's batches, known to a distributed dataset of several workers.
struct BatchRows {
  std::int64_t all = -1;  ///< rows of all replicas of all workers; -1: unknown
  std::int64_t here = 0;  ///< rows of this worker's replicas
  bool has_empty = true;  ///< some replica of some worker has no rows
  BatchPlace place = {};  ///< where the batch comes from
};

/// One possibly different component per local replica: the elements of a distributed dataset and the results of `run`.
///
///     PerReplica<Tensor> losses = strategy.run(step, batch);
///     losses[0];                         // the component of local replica 0
///     auto means = losses.map([](const Tensor& t) { return t.mean(); });
///     auto [loss, hits] = strategy.run(pair_step, batch);  // PerReplica of each part
///
/// It converts to one `T` inside a replica (its own component), if there is only one component, and if all are the same
/// variable; anywhere else that is an InvalidArgument.
template <class T>
class PerReplica : public DistributedValues<PerReplica, T> {
 public:
  static constexpr const char* kKind = "PerReplica";  ///< its name in messages
  using DistributedValues<PerReplica, T>::DistributedValues;

  /// Sent along with the batches of a distributed dataset, so that workers need not count together.
  const BatchRows& batch_rows() const { return batch_rows_; }
  void set_batch_rows(const BatchRows& rows) { batch_rows_ = rows; }

  /// In a program that represents several workers: the number of components on all of them; 0: these are all.
  std::size_t whole_size() const { return whole_size_; }
  void set_whole_size(std::size_t components) { whole_size_ = components; }

  /// The position of a local replica's component.
  static std::size_t index_of(int replica) { return static_cast<std::size_t>(replica); }

 private:
  friend DistributedValues<PerReplica, T>;

  std::size_t chosen() const {
    const int current = in_update() ? -1 : current_component();
    if (current >= 0 && static_cast<std::size_t>(current) < this->size()) return static_cast<std::size_t>(current);
    const std::size_t all = whole_size_ == 0 ? this->size() : whole_size_;
    if (all != 1 && !is_one_variable()) detail::throw_not_inside_replica(all);
    return 0;
  }

  /// Whether all replicas returned the same variable.
  bool is_one_variable() const {
    if constexpr (requires(const T& t) { t.synchronization(), t.is_same(t); }) {
      const auto is_same = [&](const T& other) { return other.is_same((*this)[0]); };
      return this->size() > 0 && std::all_of(this->begin(), this->end(), is_same);
    }
    return false;
  }

  BatchRows batch_rows_;
  std::size_t whole_size_ = 0;
};

/// One component per local replica, all equal by contract: the result of a reduction, a broadcast, an update. Converts
/// to one `T` anywhere: the own component inside a replica or update, the first one elsewhere. A value reduced or
/// broadcast to named devices has a component on each of these instead, and knows them; on one device it is a plain
/// value, which all replicas see.
template <class T>
class Mirrored : public DistributedValues<Mirrored, T> {
 public:
  static constexpr const char* kKind = "Mirrored";  ///< its name in messages
  using DistributedValues<Mirrored, T>::DistributedValues;

  /// The devices of the components; null: component k is on the device of local replica k.
  const std::shared_ptr<const Placement>& placement() const { return placement_; }
  void set_placement(std::shared_ptr<const Placement> placement) { placement_ = std::move(placement); }

  /// The position of the component on a local replica's device; InvalidArgument if there is none.
  std::size_t index_of(int replica) const {
    const std::size_t found = find(replica);
    if (placement_ && found == this->size()) detail::throw_not_placed(*placement_, replica);
    return found;
  }

 private:
  friend DistributedValues<Mirrored, T>;

  /// Returns at least the number of components if there is none.
  std::size_t find(int replica) const {
    return placement_ ? placement_->component_of(replica) : static_cast<std::size_t>(replica);
  }
  std::size_t chosen() const {
    if (current_component() < 0) return 0;
    const std::size_t found = index_of(current_component());
    return found < this->size() ? found : 0;
  }

  std::shared_ptr<const Placement> placement_;
};

/// Prints one line per component: "PerReplica:{\n  0: 1,\n  1: 2\n}".
template <class T>
std::ostream& operator<<(std::ostream& out, const PerReplica<T>& value) {
  return detail::write_components(out, value);
}
template <class T>
std::ostream& operator<<(std::ostream& out, const Mirrored<T>& value) {
  return detail::write_components(out, value);
}

}  // namespace lockstep

template <lockstep::detail::TupleLike T>
struct std::tuple_size<lockstep::PerReplica<T>> : std::tuple_size<T> {};
template <lockstep::detail::TupleLike T>
struct std::tuple_size<lockstep::Mirrored<T>> : std::tuple_size<T> {};
template <std::size_t I, lockstep::detail::TupleLike T>
struct std::tuple_element<I, lockstep::PerReplica<T>> {
  using type = lockstep::PerReplica<std::tuple_element_t<I, T>>;
};
template <std::size_t I, lockstep::detail::TupleLike T>
struct std::tuple_element<I, lockstep::Mirrored<T>> {
  using type = lockstep::Mirrored<std::tuple_element_t<I, T>>;
};
