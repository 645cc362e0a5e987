#include "lockstep/nn/step/collect.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/gradient_sample.h"
#include "lockstep/nn/step/loss_checks.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/step/sent_digests.h"
#include "lockstep/nn/step/sparse_parameters.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {
namespace {

bool holds_numbers(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.any().item<bool>();  // zero_grad of LibTorch may leave zeros
}

/// To look at numbers on a GPU is to wait for it.
bool may_hold_numbers(const at::Tensor& gradient) { return !gradient.is_cpu() || holds_numbers(gradient); }

void show_module(const ModuleCore& module, ReplicaPart& mine) {
  const auto k = static_cast<std::size_t>(mine.index);
  // Counting costs some microseconds, and what is added to a model is mostly added early.
  const std::int64_t before = mine.module_looks++;
  const bool look = before < 100 || before % 16 == 0;
  mine.shown.module_is_suspect = before == 0 || (look && module.registered_in(k) != mine.registered);
  mine.shown.modes = module.modes_of(k);
  const RunNotes* const notes = current_context()->notes;
  mine.shown.loss_size = notes == nullptr ? 0 : notes->loss_size;
}

void require_same_shape(const std::string& name, const at::Tensor& leaf, const at::Tensor& gradient) {
  if (gradient.sizes() == leaf.sizes()) return;
  throw InvalidArgument(errors::kShape,
                        {.what = lockstep::str("the gradient of '", name, "' must have its shape ", leaf.sizes(),
                                               ", got ", gradient.sizes()),
                         .help = "leave grad() to backward; give gradients of your own to optimizer.apply_gradients"});
}

void show_gradients(const OptimizerCore& core, ReplicaPart& mine) {
  const auto& parameters = core.module->parameters();
  const auto k = static_cast<std::size_t>(mine.index);
  bool is_suspect = false;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    const at::Tensor& leaf = parameters[p].leaves[k];
    const at::Tensor& gradient = leaf.grad();
    // A parameter that had a gradient and has none now was replaced, or just not used this time.
    const bool is_missing = mine.kinds[p] != GradientKind::None && !gradient.defined();
    is_suspect |= is_missing || core.module->has_moved(p, k);
    // Segments count in the memory order of the parameter, which usually is the gradient's too.
    // Who sets it by hand may give it another type.
    const bool is_ordered = !gradient.defined() || gradient.is_sparse() ||
                            (gradient.strides() == leaf.strides() && gradient.sizes() == leaf.sizes() &&
                             gradient.scalar_type() == leaf.scalar_type() && gradient.device() == leaf.device() &&
                             gradient.is_non_overlapping_and_dense());
    if (!is_ordered) require_same_shape(parameters[p].name, leaf, gradient);
    mine.shown.gradients[p] =
        is_ordered ? gradient : at::empty_like(leaf, leaf.options().requires_grad(false)).copy_(gradient);
  }
  if (is_suspect) core.module->require_unchanged();
}

/// Throws if a replica has other parameters than it was made with, or other modes than the others.
void require_same_modules(const OptimizerCore& core, ReplicaPart& mine) {
  bool is_suspect = false;
  bool is_alike = true;
  for (const auto& other : core.replicas) {
    is_suspect |= other->shown.module_is_suspect;
    is_alike &= other->shown.modes == core.replicas[0]->shown.modes;
  }
  if (is_suspect) {
    core.module->require_unchanged();
    mine.registered = core.module->registered_in(static_cast<std::size_t>(mine.index));
  }
  if (!is_alike) core.module->require_alike();
}

void compare_sizes(const OptimizerCore& core, const ReplicaPart& mine) {
  if (mine.shown.loss_size == 0 || core.said.has(Warning::DifferentSizes)) return;
  c10::SmallVector<std::int64_t, 16> sizes;
  for (const auto& replica : core.replicas) sizes.push_back(replica->shown.loss_size);
  warn_of_different_sizes(core, sizes, "replica");
}

/// Gradients that are there before the first backward of a step come from elsewhere, and would be taken for its own.
void warn_of_leftovers(OptimizerCore& core, ReplicaPart& mine) {
  if (core.said.has(Warning::Leftovers)) return;
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor& gradient = parameters[p].leaves[static_cast<std::size_t>(mine.index)].grad();
    if (core.group_of[p] < 0 || !gradient.defined() || !holds_numbers(gradient)) continue;
    if (!core.said.is_first(Warning::Leftovers)) return;
    return say_warning(lockstep::str(
        "parameter '", parameters[p].name, "' has a gradient on ", replica_name(static_cast<std::size_t>(mine.index)),
        " before the step's backward: of a backward outside of run, or of the loss of another model. It joins this "
        "step. Call optimizer.zero_grad() inside run before minimize, and optimizer.backward(loss) instead of "
        "loss.backward() to add up gradients"));
  }
}

/// The index of the first parameter whose gradient, if it has one, is `wanted`; -1 for none.
template <class F>
int find_gradient(const OptimizerCore& core, const ReplicaPart& mine, const F& wanted) {
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor& gradient = parameters[p].leaves[static_cast<std::size_t>(mine.index)].grad();
    if (core.group_of[p] >= 0 && gradient.defined() && wanted(gradient)) return static_cast<int>(p);
  }
  return -1;
}

void note_gradients(const OptimizerCore& core, ReplicaPart& mine) {
  GradientProgress& progress = mine.progress;
  progress.witness = find_gradient(core, mine, [&](const at::Tensor& gradient) {
    const std::int64_t place = sample_of_gradient(gradient).place;
    progress.witness_place = place >= 0 && has_number_at(gradient, place) ? place : -1;
    return progress.witness_place >= 0;
  });
  if (progress.witness >= 0 || core.settings.accumulate <= 1) return;
  progress.witness = find_gradient(core, mine, may_hold_numbers);  // such as the few rows of an embedding
}

/// Whether there is a number where one was after the last backward; for a replica that has a witness.
bool is_witness_there(const OptimizerCore& core, const ReplicaPart& mine) {
  const auto& leaves = core.module->parameters()[static_cast<std::size_t>(mine.progress.witness)].leaves;
  const at::Tensor& witness = leaves[static_cast<std::size_t>(mine.index)].grad();
  const std::int64_t place = mine.progress.witness_place;
  return has_place(witness, {.place = place}) && has_number_at(witness, place);
}

/// By zero_grad of a module, whether it leaves zeros or nothing. One number tells whether it is worth a look.
bool are_dropped(const OptimizerCore& core, const ReplicaPart& mine) {
  const GradientProgress& progress = mine.progress;
  if (progress.stage != GradientStage::Computed || progress.witness < 0) return false;
  return !is_witness_there(core, mine) && find_gradient(core, mine, may_hold_numbers) < 0;
}

/// In an open window nothing is decided here: a replica that has computed nothing but zeros cannot see what zero_grad
/// does, and the others must not wait for it in vain. Each notes what it sees; `drop_calls_of_window` decides.
void look_for_dropped(const OptimizerCore& core, ReplicaPart& mine) {
  GradientProgress& progress = mine.progress;
  if (progress.stage != GradientStage::Computed) return;
  const bool is_blank = progress.witness < 0;
  if (progress.accumulated > 0 && is_blank) progress.blank_calls = progress.accumulated;
  if (is_blank || !are_dropped(core, mine)) return;
  if (progress.accumulated == 0) return drop_gradients(core, mine);
  progress.dropped_calls = progress.accumulated;
}

/// What replicas know about the calls of a window that ends.
struct Window {
  std::int64_t calls = 0;      ///< of minimize, the same on every replica
  std::int64_t dropped = 0;    ///< of these: what some replica has seen zero_grad of the model drop
  std::int64_t explained = 0;  ///< so many every replica has seen dropped, or had nothing but zeros from
};

/// In a meeting: what the replicas of this worker know.
Window window_here(const OptimizerCore& core, int calls) {
  Window window{.calls = calls, .explained = std::numeric_limits<int>::max()};
  for (const auto& replica : core.replicas) {
    const std::int64_t dropped = replica->progress.dropped_calls;
    window.dropped = std::max(window.dropped, dropped);
    // Numbers do not turn into zeros by adding more: a replica that was blank later was blank then.
    window.explained = std::min(window.explained, std::max<std::int64_t>(dropped, replica->progress.blank_calls));
  }
  return window;
}

Window window_of_all(WorkerGroup& workers, const Window& here, const Deadline& deadline) {
  const auto all = workers::all_gather(workers, {here.calls, here.dropped, here.explained},
                                       "end of an accumulation window", deadline);
  Window window{all[0], all[1], all[2]};
  for (std::size_t w = 1; w < static_cast<std::size_t>(workers.workers()); ++w) {
    const std::int64_t* const theirs = all.data() + 3 * w;
    if (theirs[0] != window.calls) {
      throw FailedPrecondition(
          errors::kCollectiveMismatch,
          {.what = "workers have called minimize a different number of times since the last update",
           .seen = lockstep::str("worker 0: ", window.calls, ", worker ", w, ": ", theirs[0]),
           .help = "call minimize and zero_grad in the same order on every worker, also where a batch has no rows"});
    }
    window.dropped = std::max(window.dropped, theirs[1]);
    window.explained = std::min(window.explained, theirs[2]);
  }
  return window;
}

/// How many calls of the window zero_grad of the model has dropped. A replica that still has numbers from them
/// contradicts: then the program has set another replica's gradients to zero.
int agreed_dropped_calls(const Window& window) {
  return window.explained >= window.dropped ? static_cast<int>(window.dropped) : 0;
}

}  // namespace

void sample_gradients(const OptimizerCore& core, ReplicaPart& mine) {
  const auto& parameters = core.module->parameters();
  mine.samples.resize(parameters.size());
  for (std::size_t p = 0; p < mine.samples.size(); ++p) {
    // Gradients of other parameters are the business of other optimizers.
    const at::Tensor& gradient = parameters[p].leaves[static_cast<std::size_t>(mine.index)].grad();
    mine.samples[p] = core.group_of[p] < 0 ? GradientSample{} : sample_of_gradient(gradient);
  }
}

void warn_of_changed_gradients(OptimizerCore& core, ReplicaPart& mine) {
  if (mine.progress.stage != GradientStage::Computed || core.said.has(Warning::ChangedGradients)) return;
  // One replica alone may clip its gradients before they are reduced.
  if (core.module->strategy().num_replicas_in_sync() == 1) return;
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < mine.samples.size(); ++p) {
    const GradientSample& sample = mine.samples[p];
    const at::Tensor& gradient = parameters[p].leaves[static_cast<std::size_t>(mine.index)].grad();
    // Gradients that are gone, or zeros now, have been dropped.
    if (!has_place(gradient, sample) || !has_number_at(gradient, sample.place)) continue;
    if (bits_at(gradient, sample.place) == sample.bits) continue;
    if (!core.said.is_first(Warning::ChangedGradients)) return;
    return say_warning(lockstep::str(
        "the gradient of '", parameters[p].name, "' was changed on ",
        replica_name(static_cast<std::size_t>(mine.index)),
        " between the optimizer's backward and its step: by a backward of another loss, or by hand. The step takes it as "
        "it is. Freeze a model that another loss goes through, with requires_grad_(false) on every replica; clip with "
        "optimizer.set_clip_global_norm(max_norm), not with LibTorch's clip_grad_norm_, which sees this replica's share "
        "alone"));
  }
}

namespace {

/// LibTorch's own text proposes to keep the graph, and each gradient would then be counted twice.
void go_back_once(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const c10::Error& error) {
    if (error.msg().find("backward through the graph a second time") == std::string::npos) throw;
    throw_misuse(
        "backward has gone through the graph of this loss already",
        "for two optimizers and one loss, call backward once, and reduce_gradients() and step() of each: "
        "first.backward(loss); first.reduce_gradients(); second.reduce_gradients(); first.step(); second.step(); "
        "compute a new loss for every other backward",
        "backward");
  }
}

}  // namespace

void go_backward(OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss, const GradScaler* scaler) {
  refuse_unrecordable(core);
  if (has_failed_run(core, mine)) drop_gradients(core, mine);
  look_for_dropped(core, mine);
  warn_of_changed_gradients(core, mine);
  GradientProgress& progress = mine.progress;
  if (progress.is_reduced())
    throw_misuse("the gradients are already reduced", "call step() or zero_grad() before the next backward",
                 "backward");
  check_loss(core, mine, loss);
  if (progress.stage == GradientStage::None) warn_of_leftovers(core, mine);
  if (progress.stage == GradientStage::Computed && progress.loss_scale.has_value() != (scaler != nullptr)) {
    throw_misuse("gradients of a scaled loss cannot be added to those of an unscaled one",
                 "give the scaler to every backward and minimize of a step, or to none", "backward");
  }
  progress.stage = GradientStage::Computed;
  ++progress.backwards;
  mine.samples.clear();
  if (mine.scale) {
    if (!mine.scale->is_sent) refuse_if_recording(core, "the loss scale was set on the host");
    progress.loss_scale = kScaleOnDevice;
  } else if (scaler != nullptr && !progress.loss_scale) {
    progress.loss_scale = scaler->scale();
  }
  if (scaler != nullptr && current_context()->notes != nullptr)
    current_context()->notes->note_scale(*progress.loss_scale);
  if (mine.scale)
    go_back_once(scale_on_device(*mine.scale, loss));
  else
    go_back_once(scaler == nullptr ? loss : loss.mul(*progress.loss_scale));
  note_gradients(core, mine);
}

void meet_with_gradients(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call,
                         FunctionRef<void()> work) {
  if (!is_recording(core)) {
    receive_check(core, mine);
    receive_digests(mine);
  }
  struct Forget {
    ~Forget() { mine.digests.reset(); }  // when all have compared them
    ReplicaPart& mine;
  };
  const Forget at_the_end{mine};
  require_watched_untouched();
  show_module(*core.module, mine);
  show_gradients(core, mine);
  bool is_new_sparse = false;
  const StepCall brought{&core, call, mine.progress.loss_scale.value_or(mine.progress.given_mark)};
  core.reducer->bring_together(mine, op, brought);
  const auto agree_and_work = [&] {
    require_equal_digests(core);
    require_same_modules(core, mine);
    if (mine.index == 0) {
      compare_sizes(core, mine);
      warn_of_losses(core, op);
    }
    core.reducer->survey(mine);
    is_new_sparse = has_new_sparse(core, mine);
    if (!is_new_sparse) work();
  };
  meet("gradients", brought, agree_and_work);
  if (!is_new_sparse) return;
  deal_out_new_sparse(core, mine);  // owners change, then all meet again
  meet("gradients", brought, agree_and_work);
}

void drop_gradients(const OptimizerCore& core, ReplicaPart& mine) {
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    at::Tensor leaf = parameters[p].leaves[static_cast<std::size_t>(mine.index)];
    leaf.mutable_grad().reset();
    mine.shown.gradients[p].reset();
  }
  for (OwnedSegment& segment : mine.owned) {
    segment.sum.reset();
    segment.parts.clear();
  }
  mine.pulled.clear();
  mine.samples.clear();
  mine.scale.reset();
  if (has_failed_run(core, mine)) mine.window_calls = 0;  // it may have stopped at another call on each replica
  mine.progress = {.failed_runs = StrategyAccess::failed_runs(core.module->strategy())};
}

int drop_calls_of_window(const OptimizerCore& core, ReplicaPart& mine) {
  look_for_dropped(core, mine);
  int dropped = 0;
  const int calls = std::exchange(mine.window_calls, 0);
  const StepCall brought{.optimizer = &core, .call = "minimize", .window_calls = calls};
  const Strategy& strategy = core.module->strategy();
  if (WorkerGroup* const workers = StrategyAccess::workers(strategy)) {
    const Deadline deadline = deadline_of(strategy.communication());
    local::Seat& seat = *get_replica_context().seat();
    seat.lead(
        "end of a window", &brought,
        [&] {
          require_same_call(seat);
          const int agreed = agreed_dropped_calls(window_of_all(*workers, window_here(core, calls), deadline));
          for (const auto& replica : core.replicas) replica->progress.dropped_calls = agreed;
        },
        deadline);
    dropped = mine.progress.dropped_calls;
  } else {
    meet("end of a window", brought, [&] { dropped = agreed_dropped_calls(window_here(core, calls)); });
  }
  warn_of_ended_window(core, mine, "zero_grad() of the model", dropped);
  mine.progress.accumulated -= dropped;
  mine.progress.dropped_calls = mine.progress.blank_calls = 0;
  return dropped;
}

bool begins_anew(const OptimizerCore& core, ReplicaPart& mine) {
  if (has_failed_run(core, mine)) return true;
  if (!are_dropped(core, mine)) return false;
  warn_of_ended_window(core, mine, "zero_grad() of the model", mine.progress.accumulated);
  return true;
}

void warn_of_ended_window(const OptimizerCore& core, ReplicaPart& mine, const char* call, int calls) {
  if (calls == 0 || mine.index != 0 || !core.said.is_first(Warning::EndedWindow)) return;
  say_warning(lockstep::str(call, " has ended an accumulation window: the gradients of ", counted(calls, "call"),
                            " of minimize out of ", core.settings.accumulate,
                            " are dropped without an update. minimize forgets gradients by itself after each update; "
                            "leave zero_grad() out"));
}

bool has_failed_run(const OptimizerCore& core, const ReplicaPart& mine) {
  return StrategyAccess::failed_runs(core.module->strategy()) != mine.progress.failed_runs;
}

void require_no_failed_run(const OptimizerCore& core, const ReplicaPart& mine, const char* operation) {
  if (!has_failed_run(core, mine)) return;
  throw_misuse("a run has failed since the last step, and may have left gradients behind",
               "call zero_grad() before backward, in the next run", operation);
}

}  // namespace lockstep::detail
