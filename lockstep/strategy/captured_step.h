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

/// What `strategy.capture(f)` returns. A call is a step: `step(args...)` does what `strategy.run(f, args...)` does and returns what
/// that returns. On a GPU the third call of the same shapes records what `f` starts there, on all replicas, as one CUDA graph; that
/// call and all later ones start the graph, and `f` is not called again. On CPUs each call is a plain run.
///
/// Of a recorded step the GPU's part is repeated, so:
///
///   * Tensors among the arguments may be others each time; they are copied to where the graph reads them. Other tensors that `f`
///     uses must stay where they are: write into them, `total.add_(loss)`, not `total = total + loss`.
///   * Numbers are what they were when the step was recorded, but for those of the optimizer: learning rate, betas and so on may
///     change between calls. With other numbers or shapes among the arguments a call is a plain run; three such calls in a row
///     record the step anew.
///   * What `f` does on the host, such as counting or printing, is done when it is recorded and not again.
///   * `f` returns tensors on the GPU, structures of them, or nothing. A caller gets copies.
///
/// A step that cannot be recorded runs as it is, and `reason` says why: it reads a number back from the GPU (`item`), has
/// set_accumulate, sparse gradients, or another optimizer than SGD, Adam and AdamW. Settings of the optimizer, the model's
/// mode or its state that change between calls cost a recording.
template <class F>
class CapturedStep {
 public:
  CapturedStep(Strategy& strategy, F f) : f_(std::move(f)), capture_(strategy) {}

  template <class... Args>
  auto operator()(const Args&... args);

  /// Whether the last call started a graph.
  bool was_replayed() const { return capture_.was_replayed(); }
  /// Why the last call was a plain run; empty if it was not.
  const std::string& reason() const { return capture_.reason(); }

 private:
  F f_;
  detail::StepCapture capture_;
  std::any result_;  ///< in the graph's own memory
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
      // In braces they are made in order.
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
