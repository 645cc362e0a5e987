#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

class Strategy;

namespace detail {
struct LossScale;  // nn/step/loss_scale.h
}

/// Options of a GradScaler.
struct GradScalerOptions {
  double initial_scale = 65536.0;       ///< the scale of the first step
  double growth = 2.0;                  ///< after `growth_interval` good steps
  double backoff = 0.5;                 ///< after a step with infinities
  std::int64_t growth_interval = 2000;  ///< steps without infinities before it grows
};

/// Keeps small gradients of half precision from vanishing: multiplies the loss by a large scale and divides the reduced
/// gradients by it. A step with infinite gradients is skipped on all replicas, and the scale is lowered.
///
///     ls::GradScaler scaler(strategy);
///     strategy.run([&](...) { optimizer.minimize(loss, scaler); }, batch);
class LOCKSTEP_EXPORT GradScaler {
 public:
  explicit GradScaler(Strategy& strategy, GradScalerOptions options = {});
  /// All holders must see the same scale: pass it by reference.
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;
  ~GradScaler() = default;

  /// The loss times the scale, for use inside `run` without an optimizer's `minimize` or `backward`. After its backward
  /// call the optimizer's `reduce_gradients()`, `unscale(scaler)` and `step()`.
  at::Tensor scaled(const at::Tensor& loss) const;
  double scale() const;
  /// Reports whether a step was finite, once per replica. `minimize` and `unscale` call it.
  void update(bool was_finite);

  /// The complete state.
  struct State {
    double scale = 0;             ///< what the loss is multiplied by
    std::int64_t good_steps = 0;  ///< steps since it last changed

    bool operator==(const State&) const = default;
  };
  /// What to save; loading it continues with the same scales.
  State state() const;
  void load_state(const State& state);  ///< outside of run

 private:
  friend struct detail::LossScale;
  detail::LossScale& here() const;

  const Strategy* strategy_;
  GradScalerOptions options_;
  std::vector<std::shared_ptr<detail::LossScale>> scales_;  ///< one per replica; each replica changes its own in the
                                                            ///< same way
};

}  // namespace lockstep
