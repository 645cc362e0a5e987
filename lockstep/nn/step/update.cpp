#include "lockstep/nn/step/update.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/step/sparse_parameters.h"
#include "lockstep/strategy/detail/step_recorder.h"
#include "lockstep/strategy/intra_op.h"

namespace lockstep::detail {
namespace {

/// While all replicas are in the meeting of the update, and so compute nothing with their weights. On CPUs and GPUs together;
/// on CPUs alone only tests have several copies.
void write_to_other_copies(const OptimizerCore& core, const ReplicaPart& mine, const OwnedSegment& segment) {
  const WeightCopies& copies = core.module->copies();
  const auto k = static_cast<std::size_t>(mine.index);
  const auto& leaves = core.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].leaves;
  for (const std::size_t other : copies.first) {
    if (copies.share(other, k)) continue;
    (segment.is_whole ? leaves[other].data() : slice_of(leaves[other].data(), segment.where)).copy_(segment.weights);
  }
}

}  // namespace

void update_owned(OptimizerCore& core, ReplicaPart& mine) {
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < core.groups.size(); ++g)
    mine.inner->param_groups()[g].set_options(core.groups[g].options->clone());
  if (mine.owns_sparse) reconcile_layouts(core, mine);
  if (core.on_device && has_device_update(core)) leave_sums_to_device(mine);
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined() || !segment.parts.empty()) continue;
    refuse_if_recording(core, "a gradient is sparse or not float32");
    if (segment.is_counted_on_device) settle_counts(core, mine);
    if (std::exchange(segment.is_counted_on_device, false)) mine.numbers.reset();
    segment.weights.mutable_grad() = segment.gradient();
  }
  {
    std::optional<OneIntraOpThread> one_thread;
    if (mine.updates_on_one_thread) one_thread.emplace();
    mine.inner->step();  // does nothing for weights without a gradient
  }
  if (core.on_device) update_on_device(core, mine);
  const bool has_copies = core.module->copies().count() > 1;
  if (core.on_device && has_copies) write_to_other_gpus(core, mine);
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.parts.empty() && !core.on_device)
      core.cls.fused({*mine.inner, segment.group, segment.weights, segment.parts, mine.divisor});
    if (has_copies && !core.on_device && segment.has_gradient()) write_to_other_copies(core, mine, segment);
    if (segment.sum.defined()) segment.weights.mutable_grad().reset();
    segment.sum.reset();
    segment.parts.clear();
  }
}

void settle_all(const OptimizerCore& core, void (*settle)(const OptimizerCore&, ReplicaPart&)) {
  std::exception_ptr first;
  for (const auto& part : core.replicas) {
    try {
      settle(core, *part);
    } catch (const std::exception&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void Poison::update_or_poison(std::int64_t step, FunctionRef<void()> update) {
  try {
    update();
  } catch (const CannotRecord&) {
    throw;  // nothing has been changed
  } catch (const std::exception& e) {
    if (!is_recording(module_)) set(step, e.what());
    throw;
  } catch (...) {
    set(step, "the exception is not a std::exception");
    throw;
  }
}

void Poison::set(std::int64_t step, const char* why) {
  const std::string_view text = why;
  const std::lock_guard lock(mutex_);
  why_ = text.substr(0, text.find('\n'));  // LibTorch appends its stack
  step_ = step;
  is_set_.store(true, std::memory_order_release);
  module_.set_torn(true);
}

void Poison::require_clean(const char* operation) const {
  if (!is_set_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw FailedPrecondition(errors::kTornWeights,
                           {.what = str("weights are torn at step ", step_, ": restore a checkpoint"),
                            .where = operation,
                            .seen = str("an update failed half-way: ", why_),
                            .help = "make a new optimizer and set the weights again"});
}

}  // namespace lockstep::detail
