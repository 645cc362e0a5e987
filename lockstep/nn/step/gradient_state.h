#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/nn/owner_plan.h"

// What one replica knows of its gradients between two updates. Each phase of a step (docs/design.md, section 9) reads
// what the phase before it has left here.
namespace lockstep::detail {

/// How far a replica's gradients are on their way from the loss to the weights.
enum class GradientStage {
  None,      ///< backward has not been called since they were dropped
  Computed,  ///< of this replica's rows; backward was called, once or several times
  Reduced,   ///< of the whole batch; each owner holds the sums of its segments
  Unscaled,  ///< the same, divided by the loss scale
};

/// A loss scale that only the GPU knows.
inline constexpr double kScaleOnDevice = -1;

struct GradientProgress {
  GradientStage stage = GradientStage::None;
  int accumulated = 0;               ///< calls of minimize in the open window; 0: no window is open
  std::optional<double> loss_scale;  ///< fixed at the first backward: another optimizer may change the scaler's
  double clip_mark = 0;              ///< what the sums have been clipped to, in which order, as one number
  double given_mark = 0;             ///< of gradients that apply_gradients was given as those of all replicas
  int witness = -1;                  ///< a parameter whose gradient held numbers after the last backward; -1: none
  std::int64_t witness_place = -1;   ///< of such a number in memory; -1: unknown
  int dropped_calls = 0;             ///< of the open window: gradients that zero_grad of a module has dropped since
  int blank_calls = 0;            ///< of the open window: so many left nothing but zeros, which may be dropped or not
  std::uint64_t failed_runs = 0;  ///< of the strategy, when this replica last dropped its gradients

  bool is_reduced() const { return stage >= GradientStage::Reduced; }
  bool is_scaled() const { return loss_scale && stage != GradientStage::Unscaled; }
};

/// How a parameter's gradient looks over all replicas.
enum class GradientKind : std::uint8_t { None, Dense, Sparse };

/// Collect: one replica's gradients, shown to the others. Undefined where backward gave none.
struct ShownGradients {
  std::vector<at::Tensor> gradients;  ///< per parameter, in the parameter's memory order
  std::vector<std::int64_t> marks;    ///< of each observer
  std::uint64_t modes = 0;            ///< a mark of what is frozen and what is in training mode (ModuleCore::modes_of)
};

/// Reduce: a sum that is not finite.
struct NotFiniteSum {
  int parameter = -1;  ///< -1: all are finite
  int replica = -1;    ///< the lowest one whose gradient is not finite; -1: none of this worker's
  /// The gradients of all other replicas are finite; this one's has been replaced by the sum and cannot be checked.
  bool by_exclusion = false;
};

/// Reduce: what goes with the sums of the segments that a replica owns.
struct ReducedGradients {
  std::int64_t divisor = 1;  ///< of the sums of `OwnedSegment::parts`
  NotFiniteSum not_finite;
  std::vector<at::Tensor> pulled;  ///< copies of other GPUs' gradients, used by `parts` and the sums
};

inline at::Tensor flat_view(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

inline at::Tensor slice_of(const at::Tensor& tensor, const Segment& segment) {
  return flat_view(tensor).slice(0, segment.begin, segment.end);
}

/// A segment that one replica adds up and updates for all, and its gradient after the reduction: either `sum` is
/// defined, or `parts` holds what the fused update adds up itself, or there is no gradient in this step.
struct OwnedSegment {
  Segment where;
  std::size_t group = 0;    ///< of the optimizer's parameter groups
  bool is_whole = false;    ///< a parameter that is not cut: `weights` has its shape
  at::Tensor weights = {};  ///< what the inner optimizer updates: a view that lasts as long as the parameter
  at::Tensor sum = {};      ///< of the parameter's form; the sum is in the elements of `where`
  std::vector<const float*> parts = {};  ///< one per replica, at the segment's first element
  bool is_counted_on_device = false;     ///< its steps are; the inner optimizer does not know them all

  bool has_gradient() const { return sum.defined() || !parts.empty(); }
  /// The sum in the form of `weights`.
  at::Tensor gradient() const { return is_whole ? sum : slice_of(sum, where); }
  /// The numbers of the sum, without indices.
  at::Tensor values() const { return sum.is_sparse() ? sum._values() : slice_of(sum, where); }
};

/// Whether all sums are finite. On a GPU it waits for all of them at once.
bool are_finite(const std::vector<OwnedSegment>& segments);

}  // namespace lockstep::detail
