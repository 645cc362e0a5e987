#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/train/batch_parts.h"
#include "lockstep/train/typed_function.h"

namespace lockstep::train {

/// A function that returns one loss for each row: [rows], or [rows, ...], which is averaged over each row. Its first parameter is the
/// network's output, its second one the target, which is the last field of a batch, or the whole batch.
///
///     .loss = [](const Tensor& output, const Tensor& target) { ... }
///     .loss = [](const VaeOutput& output, const Images& mine) { ... }
class LOCKSTEP_EXPORT Loss {
 public:
  Loss() = default;
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Loss>)
  Loss(F f) {  // NOLINT(google-explicit-constructor)
    using Parameters = typename decltype(detail::parameters_of<F>())::type;
    constexpr bool kIsLoss = detail::length_v<Parameters> == 2 && detail::is_callable_with_v<F, Parameters>;
    static_assert(kIsLoss,
                  "a loss must be a function of two values whose types are written out: "
                  "[](const Output& output, const Target& target) { return one value for each row; }");
    if constexpr (kIsLoss) f_ = {std::move(f), Parameters()};
  }
  /// An empty function gives an empty loss.
  template <class R, class... A>
  Loss(std::function<R(A...)> f) {  // NOLINT(google-explicit-constructor)
    if (f) *this = Loss([f = std::move(f)](const std::remove_cvref_t<A>&... values) { return f(values...); });
  }

  explicit operator bool() const { return static_cast<bool>(f_); }
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
  /// Throws InvalidArgument if it takes other types.
  at::Tensor operator()(const detail::Prediction& prediction) const;

 private:
  detail::TypedFunction<at::Tensor> f_;
};

/// Losses with one value for each row, for `Model` and for loops of your own.
namespace losses {

/// Options of `cross_entropy`.
struct CrossEntropyOptions {
  double label_smoothing = 0.0;  ///< the share of each target that goes to all classes evenly
};
/// Of logits with classes in dimension 1, and class numbers or probabilities as targets.
LOCKSTEP_EXPORT Loss cross_entropy(const CrossEntropyOptions& options = {});
/// Of logits, and targets from 0 to 1 of the same shape.
LOCKSTEP_EXPORT Loss binary_cross_entropy();
LOCKSTEP_EXPORT Loss mse();
LOCKSTEP_EXPORT Loss mae();

}  // namespace losses

namespace detail {

/// What `loss` returns as one value for each row. Throws InvalidArgument for a loss that is a mean or a sum already.
at::Tensor row_losses(const Loss& loss, const Prediction& prediction);

}  // namespace detail
}  // namespace lockstep::train
