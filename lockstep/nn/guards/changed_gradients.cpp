#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/gradient_sample.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/warn_once.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

/// Remembers one element of each gradient while gradients wait for the program's next call. Between reduce_gradients
/// and step the sums are in the gradients of the replicas' leaves, where LibTorch's own functions can change them.
class ChangedGradients final : public StepObserver {
 public:
  explicit ChangedGradients(const OptimizerCore& core) : samples_(core.replicas.size()) {}

  void gradients_wait(const StepMoment& moment) override {
    Samples& samples = of(moment);
    samples.resize(moment.core.group_of.size());
    for (std::size_t p = 0; p < samples.size(); ++p) {
      // Gradients of other parameters belong to other optimizers.
      samples[p] = moment.core.group_of[p] < 0 ? GradientSample{} : sample_of_gradient(gradient_of(moment, p));
    }
  }

  void gradients_taken(const StepMoment& moment) override {
    if (moment.part.progress.is_reduced()) return require_own(moment);
    warn_of_changed(moment);
    of(moment).clear();  // the call may be a backward, which changes them
  }

  void dropped(const StepMoment& moment) override { of(moment).clear(); }

 private:
  using Samples = std::vector<GradientSample>;  ///< per parameter; empty unless gradients wait

  Samples& of(const StepMoment& moment) { return samples_[static_cast<std::size_t>(moment.replica())]; }
  static const at::Tensor& gradient_of(const StepMoment& moment, std::size_t p) {
    return moment.core.module->parameters()[p].leaves[static_cast<std::size_t>(moment.replica())].grad();
  }

  void warn_of_changed(const StepMoment& moment) {
    if (moment.part.progress.stage != GradientStage::Computed || warning_.is_done()) return;
    // A single replica may clip its gradients before they are reduced.
    if (moment.core.module->strategy().num_replicas_in_sync() == 1) return;
    const Samples& samples = of(moment);
    for (std::size_t p = 0; p < samples.size(); ++p) {
      const at::Tensor& gradient = gradient_of(moment, p);
      // Gradients that are gone, or zero now, were dropped.
      if (!has_place(gradient, samples[p]) || !has_number_at(gradient, samples[p].place)) continue;
      if (bits_at(gradient, samples[p].place) == samples[p].bits) continue;
      if (!warning_.is_first()) return;
      return say_warning(lockstep::str(
          "the gradient of '", moment.core.module->parameters()[p].name, "' was changed on ",
          replica_name(static_cast<std::size_t>(moment.replica())),
          " between the optimizer's backward and its step: by a backward of another loss, or by hand. The step takes it "
          "as it is. Freeze a model that another loss goes through, with requires_grad_(false) on every replica; clip "
          "with optimizer.set_clip_global_norm(max_norm), not with LibTorch's clip_grad_norm_, which sees only this "
          "replica's share"));
    }
  }

  void require_own(const StepMoment& moment) {
    const Samples& samples = of(moment);
    for (std::size_t p = 0; p < samples.size(); ++p) {
      if (samples[p].place < 0) continue;
      const at::Tensor& gradient = gradient_of(moment, p);
      if (has_place(gradient, samples[p]) && bits_at(gradient, samples[p].place) == samples[p].bits) continue;
      throw_misuse(
          str("the gradient of '", moment.core.module->parameters()[p].name,
              "' was changed between reduce_gradients and ", moment.call),
          "call optimizer.clip_global_norm(max_norm) or optimizer.clip_value(limit), which know the gradients of "
          "all replicas; clip_grad_norm_ of LibTorch sees only this replica's. To change gradients in another "
          "way, give them to optimizer.apply_gradients. Of two optimizers on the same weights, each has to step "
          "before the other reduces",
          moment.call);
    }
  }

  std::vector<Samples> samples_;  ///< per replica
  WarnOnce warning_;
};

}  // namespace

std::shared_ptr<StepObserver> make_changed_gradients(const OptimizerCore& core) {
  return std::make_shared<ChangedGradients>(core);
}

}  // namespace lockstep::detail
