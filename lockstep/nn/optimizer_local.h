#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/replica_context.h"

// What the parts of OptimizerCore share; not for users.
namespace lockstep {

/// What belongs to one replica; touched by its own thread, except where a meeting says otherwise.
struct OptimizerCore::Local {
  int replica = 0;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::vector<at::Tensor> segments;  ///< what `inner` updates: views that last as long as the parameters
  bool has_16_bit_segments =
      false;           ///< whose updates have to be made by one thread to have the same bits for every cut
  GradientView shown;  ///< this replica's gradients, as the others see them
  std::vector<at::Tensor>
      reduced;              ///< per own segment: the gradient tensor that holds its sum; undefined: nothing to do
  std::vector<bool> fused;  ///< per own segment: summed by its update
  std::vector<const void*> addresses;  ///< per parameter: where its memory was when the optimizer was made
  std::vector<bool> touched;           ///< per parameter: it has a gradient somewhere
  std::vector<GradientKind> kinds;     ///< per parameter
  std::vector<int> newly_sparse;
  bool owns_sparse = false;  ///< a parameter whose gradients are, or once were, sparse
  int bad_parameter = -1;    ///< the first own parameter with a sum that is not finite, and whose fault it is
  int bad_replica = -1;
  bool bad_by_exclusion = false;  ///< the others' gradients were finite; its own are gone, the sum lies there
  bool is_reduced = false;
  std::int64_t reductions = 0;  ///< since the optimizer was made
  std::size_t registered = 0;   ///< ModuleCore::registered_in when the module was last found unchanged
  bool has_gradients = false;   ///< backward was called since they were dropped
  bool is_unscaled = false;     ///< the reduced gradients have been divided by a loss scale
  double clipped = 0;  ///< a mark of what the reduced gradients have been clipped to, in which order; 0: nothing
  int accumulated = 0;
  std::optional<double>
      loss_scale;  ///< of the gradients: another optimizer may change the scaler's before they are reduced
  std::uint64_t failed_runs = 0;  ///< of the strategy, when this replica last looked
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  bool has_warned_of_window = false;     ///< that zero_grad ended
  bool has_warned_of_unreached = false;  ///< parameters
};

inline at::Tensor flat_view(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

inline at::Tensor slice_of(const at::Tensor& tensor, const Segment& segment) {
  return flat_view(tensor).slice(0, segment.begin, segment.end);
}

inline bool is_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

[[noreturn]] inline void throw_use(std::string what, std::string help, std::string where = {}) {
  throw FailedPrecondition(errors::kOptimizer,
                           {.what = std::move(what), .where = std::move(where), .help = std::move(help)});
}

/// What a replica brings to a meeting about an optimizer. All but the payload must be the same on every replica.
struct Brought {
  const OptimizerCore* optimizer = nullptr;
  const char* call = "";  ///< what the user called
  double argument = 0;    ///< and with what
  const void* payload = nullptr;
};

/// Throws the same on every replica, before anything has been changed.
void require_same_call(const local::Seat& seat);

/// A meeting of the replicas of this run; alone, simply the work.
inline void meet(const char* name, const Brought& mine, FunctionRef<void()> work) {
  local::Seat* seat = get_replica_context().seat();
  if (seat == nullptr) return work();
  seat->exchange(name, &mine, [&] {
    require_same_call(*seat);
    work();
  });
}

template <class T>
std::vector<const T*> shown_by_all(const T& mine) {
  const local::Seat* seat = get_replica_context().seat();
  if (seat == nullptr) return {&mine};
  std::vector<const T*> all;
  for (int k = 0; k < seat->size(); ++k)
    all.push_back(static_cast<const T*>(static_cast<const Brought*>(seat->payload_of(k))->payload));
  return all;
}

}  // namespace lockstep
