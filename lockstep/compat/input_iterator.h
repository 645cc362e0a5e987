#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/compat/names.h"
#include "lockstep/data/distribute/distributed_dataset.h"

namespace lockstep::compat::names {

[[noreturn]] LOCKSTEP_EXPORT void throw_no_element_spec();

/// TensorFlow 1's iterator, of `make_dataset_iterator` and `make_input_fn_iterator`. It ends where a replica has no element
/// left; the part of a cut batch that a replica gets may be empty.
template <class T>
class InputIterator {
 public:
  explicit InputIterator(data::DistributedInputPtr input) : dataset_(std::move(input)) {}
  InputIterator(int replicas, std::function<T()> values) : replicas_(replicas), values_(std::move(values)) {}

  /// Starts again from the first step; without effect on a callable. The first `get_next` does it by itself.
  void initialize() {
    in_own_words([] { data::require_outside_replicas("initialize"); });
    if (dataset_) steps_.emplace(dataset_->iterator());
  }

  /// What TensorFlow runs in a session.
  void initializer() { initialize(); }
  /// Of a dataset; a callable has none.
  DistributedSpec element_spec() const {
    if (!dataset_) throw_no_element_spec();
    return dataset_->element_spec();
  }

  /// The next value of each replica; OutOfRange at the end.
  PerReplica<T> get_next() {
    data::require_outside_replicas("get_next");
    if (!dataset_)
      return PerReplica<T>::generate(static_cast<std::size_t>(replicas_), [&](std::size_t) { return values_(); });
    if (!steps_) initialize();
    return in_own_words([&] { return steps_->get_next(); });
  }

 private:
  std::optional<DistributedDataset<T>> dataset_;
  std::optional<DistributedIterator<T>> steps_;
  int replicas_ = 0;
  std::function<T()> values_;  ///< called for each replica in turn
};

}  // namespace lockstep::compat::names

namespace lockstep::compat {

LOCKSTEP_EXPORT data::DistributedInputPtr dataset_steps(lockstep::Strategy& core, const data::StagePtr& dataset);
LOCKSTEP_EXPORT InputContext worker_context(lockstep::Strategy& core, names::InputReplicationMode mode);
[[noreturn]] LOCKSTEP_EXPORT void throw_no_input();

template <class F>
auto input_fn_iterator(lockstep::Strategy& core, F& input_fn, names::InputReplicationMode mode) {
  using Made = std::remove_cvref_t<std::invoke_result_t<F&, const InputContext&>>;
  const InputContext context = worker_context(core, mode);
  const Scope scope = core.scope();
  Made made = input_fn(context);
  if constexpr (data::detail::is_dataset_v<Made>) {
    return names::InputIterator<typename Made::value_type>(
        data::only_whole_steps(data::distribute_made(core, {made.stage()}, {})));
  } else if constexpr (!std::is_invocable_v<Made&>) {
    static_assert(lockstep::detail::never<F>, "input_fn must return a Dataset, or a callable without arguments");
    return lockstep::detail::AfterCompileError();
  } else {
    using T = std::decay_t<std::invoke_result_t<Made&>>;
    std::function<T()> values(std::move(made));
    if (!values) throw_no_input();
    return names::InputIterator<T>(core.num_local_replicas(), std::move(values));
  }
}

}  // namespace lockstep::compat
