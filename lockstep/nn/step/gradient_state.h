#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/nn/owner_plan.h"

// One replica's gradient state between two updates. Each phase of a step (docs/design.md, section 9) reads what the
// previous one left here.
namespace lockstep::detail {

/// How far a replica's gradients have come from the loss to the weights.
enum class GradientStage {
  None,      ///< backward has not been called since they were dropped
  Computed,  ///< computed from this replica's rows, by one or more calls of backward
  Reduced,   ///< over the whole batch; each owner holds the sums of its segments
  Unscaled,  ///< the same, divided by the loss scale
};

/// A loss scale known only to the GPU.
inline constexpr double kScaleOnDevice = -1;

struct GradientProgress {
  GradientStage stage = GradientStage::None;
  int accumulated = 0;               ///< calls of minimize in the open window; 0: no window is open
  std::optional<double> loss_scale;  ///< fixed at the first backward: another optimizer may change the scaler's
  double clip_mark = 0;              ///< hash of the clips applied to the sums, in order
  double given_mark = 0;             ///< mark of gradients passed to apply_gradients with AllReplicas
  int witness = -1;                  ///< a parameter whose gradient held numbers after the last backward; -1: none
  std::int64_t witness_place = -1;   ///< place in memory of such a number; -1: unknown
  int dropped_calls = 0;             ///< calls of the open window whose gradients zero_grad of a module has dropped
  int blank_calls = 0;            ///< calls of the open window that left only zeros, which may have been dropped or not
  std::uint64_t failed_runs = 0;  ///< the strategy's count when this replica last dropped its gradients

  bool is_reduced() const { return stage >= GradientStage::Reduced; }
  bool is_scaled() const { return loss_scale && stage != GradientStage::Unscaled; }
};

/// A parameter's gradient over all replicas.
enum class GradientKind : std::uint8_t { None, Dense, Sparse };

/// Collect: one replica's gradients, published to the others. Undefined if backward computed none.
struct ShownGradients {
  std::vector<at::Tensor> gradients;  ///< per parameter, in the parameter's memory order
  std::vector<std::int64_t> marks;    ///< per observer
  std::uint64_t modes = 0;            ///< a mark of frozen parameters and training modes (ModuleCore::modes_of)
};

/// Reduce: a sum that is not finite.
struct NonFiniteSum {
  int parameter = -1;  ///< -1: all are finite
  int replica = -1;    ///< the lowest one whose gradient is not finite; -1: none of this worker's
  /// The gradients of all other replicas are finite; this one's was replaced by the sum and cannot be checked.
  bool by_exclusion = false;
};

/// Reduce: data about the sums of the segments that a replica owns.
struct ReducedGradients {
  std::int64_t divisor = 1;  ///< for the sums of `OwnedSegment::parts`
  NonFiniteSum not_finite;
  std::vector<at::Tensor> pulled;  ///< copies of other GPUs' gradients, used by `parts` and the sums
};

inline at::Tensor flat_view(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

inline at::Tensor slice_of(const at::Tensor& tensor, const Segment& segment) {
  return flat_view(tensor).slice(0, segment.begin, segment.end);
}

/// A segment that one replica sums and updates for all, and its gradient after the reduction: either `sum` is defined,
/// or `parts` holds the inputs that the fused update sums itself, or there is no gradient in this step.
struct OwnedSegment {
  Segment where;
  std::size_t group = 0;    ///< index of the optimizer's parameter group
  bool is_whole = false;    ///< a parameter that is not cut: `weights` has its shape
  at::Tensor weights = {};  ///< the weights updated by the inner optimizer: a view that lasts as long as the parameter
  at::Tensor sum = {};      ///< shaped like the parameter; the sum is in the elements of `where`
  std::vector<const float*> parts = {};  ///< one per replica, at the segment's first element
  bool is_counted_on_device = false;     ///< the device counts its steps; the inner optimizer may lag

  bool has_gradient() const { return sum.defined() || !parts.empty(); }
  /// The sum in the shape of `weights`.
  at::Tensor gradient() const { return is_whole ? sum : slice_of(sum, where); }
  /// The numbers of the sum, without indices.
  at::Tensor values() const { return sum.is_sparse() ? sum._values() : slice_of(sum, where); }
};

/// Whether all sums are finite. On a GPU it waits for all of them at once.
bool are_finite(const std::vector<OwnedSegment>& segments);

}  // namespace lockstep::detail
