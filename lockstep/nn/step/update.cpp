#include "lockstep/nn/step/update.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
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

void Updater::step_inner(ReplicaPart& mine) const {
  bool has_half = false;
  for (const OwnedSegment& segment : mine.owned) {
    has_half |= segment.weights.element_size() == 2;
    if (segment.sum.defined() && segment.parts.empty()) segment.weights.mutable_grad() = segment.gradient();
  }
  // LibTorch's bits of 16-bit weights depend on the number of threads.
  std::optional<OneIntraOpThread> one_thread;
  if (has_half && core_.replicas.size() > 1) one_thread.emplace();
  mine.inner->step();  // does nothing for weights without a gradient
  for (const OwnedSegment& segment : mine.owned) {
    if (segment.sum.defined()) segment.weights.mutable_grad().reset();
  }
}

namespace {

class HostUpdater final : public Updater {
 public:
  /// A fused update reads all gradients in one memory.
  explicit HostUpdater(OptimizerCore& core)
      : Updater(core), traits_{.adds_up = core.cls.fused != nullptr && !core.module->copies().is_mixed} {}

  UpdateTraits traits(const std::vector<GradientKind>&) const override { return traits_; }

  void update(ReplicaPart& mine) override {
    const at::NoGradGuard no_grad;
    if (mine.owns_sparse) reconcile_layouts(core_, mine);
    const auto is_fused = [](const OwnedSegment& segment) { return !segment.parts.empty(); };
    const auto is_left_to_inner = [](const OwnedSegment& segment) {
      return segment.sum.defined() && segment.parts.empty();
    };
    if (std::ranges::none_of(mine.owned, is_fused) || std::ranges::any_of(mine.owned, is_left_to_inner))
      step_inner(mine);
    const bool has_copies = core_.module->copies().count() > 1;
    for (const OwnedSegment& segment : mine.owned) {
      if (is_fused(segment))
        core_.cls.fused({*mine.inner, segment.group, segment.weights, segment.parts, mine.reduced.divisor});
      if (has_copies && segment.has_gradient()) write_to_other_copies(mine, segment);
    }
  }

 private:
  /// Called while all replicas are in the meeting of the update, and so compute nothing with their weights. On CPUs and
  /// GPUs together; on CPUs only tests have several copies.
  void write_to_other_copies(const ReplicaPart& mine, const OwnedSegment& segment) const {
    const WeightCopies& copies = core_.module->copies();
    const auto& leaves = core_.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].leaves;
    for (const std::size_t other : copies.first) {
      if (copies.share(other, static_cast<std::size_t>(mine.index))) continue;
      (segment.is_whole ? leaves[other].data() : slice_of(leaves[other].data(), segment.where)).copy_(segment.weights);
    }
  }

  const UpdateTraits traits_;
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
  why_ = text.substr(0, text.find('\n'));  // without LibTorch's stack trace
  step_ = step;
  is_lifted_.store(false, std::memory_order_release);
  is_set_.store(true, std::memory_order_release);
  module_.set_torn(true);
}

void Poison::require_clean(const char* operation) const {
  if (!is_set()) return;
  if (is_lifted_.load(std::memory_order_acquire) && !module_.is_torn()) return;
  const std::lock_guard lock(mutex_);
  throw FailedPrecondition(errors::kTornWeights,
                           {.what = str("weights are torn at step ", step_, ": restore a checkpoint"),
                            .where = operation,
                            .seen = str("an update failed half-way: ", why_),
                            .help = "restore a snapshot of model and optimizer, or make a new optimizer and set "
                                    "the weights again, in model.update(f) or by ls::load"});
}

void Poison::require_whole_weights(const char* operation) const {
  require_clean(operation);
  if (!module_.is_torn()) return;
  throw FailedPrecondition(errors::kTornWeights,
                           {.what = "weights are torn: an update of another optimizer failed half-way",
                            .where = operation,
                            .help = "restore a snapshot, load a file, or set the weights in model.update(f)"});
}

}  // namespace lockstep::detail
