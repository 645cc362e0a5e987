#include "lockstep/nn/step/update.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <optional>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/step/sparse_parameters.h"
#include "lockstep/nn/step/updater.h"
#include "lockstep/strategy/detail/step_recorder.h"
#include "lockstep/strategy/intra_op.h"

namespace lockstep::detail {

void Updater::prepare(ReplicaPart& mine) const {
  for (std::size_t g = 0; g < core_.groups.size(); ++g)
    mine.inner->param_groups()[g].set_options(core_.groups[g].options->clone());
  if (mine.owns_sparse) reconcile_layouts(core_, mine);
}

void Updater::step_inner(ReplicaPart& mine) const {
  bool has_sums = false, has_parts = false, has_half = false;
  for (const OwnedSegment& segment : mine.owned) {
    has_half |= segment.weights.element_size() == 2;
    has_parts |= !segment.parts.empty();
    if (!segment.sum.defined() || !segment.parts.empty()) continue;
    segment.weights.mutable_grad() = segment.gradient();
    has_sums = true;
  }
  if (has_parts && !has_sums) return;
  // LibTorch's bits of 16-bit weights depend on the number of threads.
  std::optional<OneIntraOpThread> one_thread;
  if (has_half && core_.replicas.size() > 1) one_thread.emplace();
  mine.inner->step();  // does nothing for weights without a gradient
}

void Updater::forget_sums(ReplicaPart& mine) {
  for (OwnedSegment& segment : mine.owned) {
    if (segment.sum.defined()) segment.weights.mutable_grad().reset();
    segment.sum.reset();
    segment.parts.clear();
  }
}

namespace {

class HostUpdater final : public Updater {
 public:
  using Updater::Updater;

  UpdateTraits traits(const std::vector<GradientKind>&) const override {
    // Which reads all gradients in one memory.
    return {.adds_up = core_.cls.fused != nullptr && !core_.module->copies().is_mixed};
  }

  void update(ReplicaPart& mine) override {
    const at::NoGradGuard no_grad;
    prepare(mine);
    step_inner(mine);
    const bool has_copies = core_.module->copies().count() > 1;
    for (const OwnedSegment& segment : mine.owned) {
      if (!segment.parts.empty())
        core_.cls.fused({*mine.inner, segment.group, segment.weights, segment.parts, mine.reduced.divisor});
      if (has_copies && segment.has_gradient()) write_to_other_copies(mine, segment);
    }
    forget_sums(mine);
  }

 private:
  /// While all replicas are in the meeting of the update, and so compute nothing with their weights. On CPUs and GPUs
  /// together; on CPUs alone only tests have several copies.
  void write_to_other_copies(const ReplicaPart& mine, const OwnedSegment& segment) const {
    const WeightCopies& copies = core_.module->copies();
    const auto& leaves = core_.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].leaves;
    for (const std::size_t other : copies.first) {
      if (copies.share(other, static_cast<std::size_t>(mine.index))) continue;
      (segment.is_whole ? leaves[other].data() : slice_of(leaves[other].data(), segment.where)).copy_(segment.weights);
    }
  }
};

}  // namespace

std::unique_ptr<Updater> make_host_updater(OptimizerCore& core) { return std::make_unique<HostUpdater>(core); }

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
  is_lifted_.store(false, std::memory_order_release);
  is_set_.store(true, std::memory_order_release);
  module_.set_torn(true);
}

void Poison::require_clean(const char* operation) const {
  if (!is_set_.load(std::memory_order_acquire)) return;
  if (is_lifted_.load(std::memory_order_acquire) && !module_.is_torn()) return;
  const std::lock_guard lock(mutex_);
  throw FailedPrecondition(errors::kTornWeights,
                           {.what = str("weights are torn at step ", step_, ": restore a checkpoint"),
                            .where = operation,
                            .seen = str("an update failed half-way: ", why_),
                            .help = "restore a snapshot of model and optimizer, or make a new optimizer and set "
                                    "the weights again"});
}

}  // namespace lockstep::detail
