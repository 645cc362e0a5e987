#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/compat/names.h"
#include "lockstep/data/distribute/distributed_dataset.h"

namespace lockstep::compat::names {

/// Throws FailedPrecondition: TensorFlow's iterator of a callable has no `element_spec`.
[[noreturn]] LOCKSTEP_EXPORT void throw_no_element_spec();

/// TensorFlow 1's iterator, from `make_dataset_iterator` and `make_input_fn_iterator`. A dataset's last step may leave
/// replicas without rows, which get empty batches; over the batches of an `input_fn` the iterator ends as soon as a
/// replica has none left, and the others' remaining ones are lost, as in TensorFlow. Copies refer to the same pass, as
/// in Python: the result of `experimental_run_steps_on_iterator` contains one.
template <class T>
class InputIterator {
 public:
  explicit InputIterator(data::DistributedInputPtr input) : pass_(std::make_shared<Pass>()) {
    pass_->dataset.emplace(std::move(input));
  }
  InputIterator(int replicas, std::function<T()> values) : pass_(std::make_shared<Pass>()) {
    pass_->replicas = static_cast<std::size_t>(replicas);
    pass_->values = std::move(values);
  }
  InputIterator(const InputIterator&) = default;  // and no move, which would leave one without a pass
  InputIterator& operator=(const InputIterator&) = default;

  /// Starts again from the first step; without effect on a callable. The first `get_next` does it by itself.
  void initialize() {
    in_v1_words([] { data::require_outside_replicas("initialize"); });
    if (pass_->dataset) pass_->steps.emplace(pass_->dataset->iterator());
  }

  /// TensorFlow runs this in a session.
  void initializer() { initialize(); }
  /// A dataset has one, a callable does not.
  DistributedSpec element_spec() const {
    if (!pass_->dataset) throw_no_element_spec();
    return pass_->dataset->element_spec();
  }

  /// The next value of each replica; OutOfRange at the end.
  PerReplica<T> get_next() {
    data::require_outside_replicas("get_next");
    if (!pass_->dataset) return PerReplica<T>::generate(pass_->replicas, [&](std::size_t) { return pass_->values(); });
    if (!pass_->steps) initialize();
    return in_v1_words([&] { return pass_->steps->get_next(); });
  }

 private:
  struct Pass {
    std::optional<DistributedDataset<T>> dataset;
    std::optional<DistributedIterator<T>> steps;
    std::size_t replicas = 0;
    std::function<T()> values;  ///< called for each replica in turn
  };
  std::shared_ptr<Pass> pass_;
};

}  // namespace lockstep::compat::names

namespace lockstep::compat {

/// For this API's own code: the steps of a dataset, the context of an input function, and the error for none.
LOCKSTEP_EXPORT data::DistributedInputPtr dataset_steps(lockstep::Strategy& core, const data::StagePtr& dataset);
LOCKSTEP_EXPORT InputContext worker_context(lockstep::Strategy& core, names::InputReplicationMode mode);
[[noreturn]] LOCKSTEP_EXPORT void throw_no_input();

/// Makes an iterator of what `input_fn(context)` returns. For this API's own code.
template <class F>
auto input_fn_iterator(lockstep::Strategy& core, F& input_fn, names::InputReplicationMode mode) {
  if constexpr (!std::is_invocable_v<F&, const InputContext&>) {
    static_assert(lockstep::detail::never<F>, "make_input_fn_iterator(f) calls f(const InputContext&)");
    return lockstep::detail::AfterCompileError();
  } else {
    const InputContext context = worker_context(core, mode);
    const Scope scope = core.scope();
    auto made = input_fn(context);
    using Made = decltype(made);
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
}

}  // namespace lockstep::compat
