#pragma once

#include <any>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/strategy/detail/step_capture.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/type_name.h"

namespace lockstep {

/// The result of `strategy.capture(f)`. `step(args...)` does the work of `strategy.run(f, args...)` and returns the
/// same. On a GPU the third call with the same shapes records the GPU work of `f`, on all replicas, as one CUDA graph;
/// that call and all later ones launch the graph, and `f` is not called again. On CPUs each call is a plain run.
///
/// Replay repeats only the GPU work, so:
///
///   * Tensors among the arguments may differ from call to call; they are copied to where the graph reads them. Other
///     tensors that `f` uses must stay in place: write into them, `total.add_(loss)`, not `total = total + loss`.
///   * Numbers keep the values they had when the step was recorded, except for the optimizer's: learning rate, betas
///     and so on may change between calls. A call with different numbers or shapes among its arguments is a plain run;
///     three such calls in a row record the step again.
///   * Work of `f` on the host, such as counting or printing, happens during recording and not during replay.
///   * `f` returns tensors on the GPU, structures of them, or nothing. The caller gets copies.
///
/// A step that cannot be recorded runs as usual, and `reason` returns the cause: it reads a number back from the GPU
/// (`item`), uses set_accumulate or sparse gradients, or has an optimizer other than SGD, Adam and AdamW. If the
/// optimizer's settings, the model's mode or its state change between calls, the step is recorded again.
template <class F>
class CapturedStep {
 public:
  CapturedStep(Strategy& strategy, F f) : f_(std::move(f)), capture_(strategy) {}

  template <class... Args>
  auto operator()(const Args&... args);

  /// Whether the last call replayed a graph.
  bool was_replayed() const { return capture_.was_replayed(); }
  /// Why the last call was a plain run; empty if it was not.
  const std::string& reason() const { return capture_.reason(); }

 private:
  F f_;
  detail::StepCapture capture_;
  std::any result_;  ///< result of the recorded run, in the graph's own memory
};

template <class F>
CapturedStep<std::decay_t<F>> Strategy::capture(F&& f) {
  return CapturedStep<std::decay_t<F>>(*this, std::forward<F>(f));
}

template <class F>
template <class... Args>
auto CapturedStep<F>::operator()(const Args&... args) {
  Strategy& strategy = capture_.strategy();
  using Result = decltype(strategy.run(f_, args...));
  const auto run_plainly = [&]() -> Result {
    const auto recorded = capture_.plain_run();
    return strategy.run(f_, args...);
  };
  if constexpr (!(detail::all_leaves_v<detail::IsTensorOrNumber, Args> && ...)) {
    capture_.refuse(str("an argument holds something else than tensors and numbers"));
    return run_plainly();
  } else if constexpr (!detail::all_leaves_v<detail::IsTensor, Result>) {
    capture_.refuse(str("it returns ", type_name<Result>(), ", and only tensors can be returned anew each time"));
    return run_plainly();
  } else {
    detail::StepInputs inputs{.types = &typeid(std::tuple<Args...>)};
    (detail::take_inputs(args, inputs), ...);
    auto way = capture_.plan(inputs);
    if (way == detail::StepCapture::Way::Record) {
      std::size_t next = 0;
      // Braces guarantee the order of evaluation.
      const std::tuple<Args...> own{detail::replace_tensors(args, capture_.inputs(), next)...};
      const bool is_recorded = capture_.record(inputs, [&] {
        std::apply(
            [&](const Args&... each) {
              if constexpr (std::is_void_v<Result>) {
                strategy.run(f_, each...);
              } else {
                result_ = strategy.run(f_, each...);
                detail::for_each_tensor(std::any_cast<const Result&>(result_), detail::require_on_gpu);
              }
            },
            own);
      });
      if (!is_recorded) way = detail::StepCapture::Way::Run;
    }
    if (way == detail::StepCapture::Way::Run) return run_plainly();
    capture_.replay(inputs);
    if constexpr (!std::is_void_v<Result>) return detail::copy_tensors(std::any_cast<const Result&>(result_));
  }
}

}  // namespace lockstep
