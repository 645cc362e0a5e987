#include "lockstep/nn/step/window.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/gradient_sample.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {

bool holds_numbers(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.any().item<bool>();  // LibTorch's zero_grad may leave zeros
}

namespace {

/// Reading a GPU's numbers would wait for it.
bool may_hold_numbers(const at::Tensor& gradient) { return !gradient.is_cpu() || holds_numbers(gradient); }

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

/// Whether the number found after the last backward is still nonzero; for a replica that has a witness.
bool is_witness_there(const OptimizerCore& core, const ReplicaPart& mine) {
  const auto& leaves = core.module->parameters()[static_cast<std::size_t>(mine.progress.witness)].leaves;
  const at::Tensor& witness = leaves[static_cast<std::size_t>(mine.index)].grad();
  const std::int64_t place = mine.progress.witness_place;
  return has_place(witness, {.place = place}) && has_number_at(witness, place);
}

/// Whether zero_grad of a module, leaving zeros or nothing, dropped them. One number shows whether a full check is
/// worthwhile.
bool are_dropped(const OptimizerCore& core, const ReplicaPart& mine) {
  const GradientProgress& progress = mine.progress;
  if (progress.stage != GradientStage::Computed || progress.witness < 0) return false;
  return !is_witness_there(core, mine) && find_gradient(core, mine, may_hold_numbers) < 0;
}

/// What replicas know about the calls of a window that ends.
struct Window {
  std::int64_t calls = 0;      ///< calls of minimize, the same on every replica
  std::int64_t dropped = 0;    ///< how many of these some replica saw dropped by the model's zero_grad
  std::int64_t explained = 0;  ///< how many every replica saw dropped, or had only zeros from
};

/// In a meeting: the combined knowledge of this worker's replicas.
Window window_here(const OptimizerCore& core, int calls) {
  Window window{.calls = calls, .explained = std::numeric_limits<int>::max()};
  for (const auto& replica : core.replicas) {
    const std::int64_t dropped = replica->progress.dropped_calls;
    window.dropped = std::max(window.dropped, dropped);
    // Adding does not turn numbers into zeros: a replica that was blank later was blank then.
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
           .help = "call minimize and zero_grad in the same order on every worker, even if a batch has no rows"});
    }
    window.dropped = std::max(window.dropped, theirs[1]);
    window.explained = std::min(window.explained, theirs[2]);
  }
  return window;
}

/// How many calls of the window zero_grad of the model dropped. A replica that still has numbers from them contradicts:
/// then the program zeroed only another replica's gradients.
int agreed_dropped_calls(const Window& window) {
  return window.explained >= window.dropped ? static_cast<int>(window.dropped) : 0;
}

}  // namespace

void let_gradients_wait(const OptimizerCore& core, ReplicaPart& mine, const char* call) {
  GradientProgress& progress = mine.progress;
  progress.witness = find_gradient(core, mine, [&](const at::Tensor& gradient) {
    const std::int64_t place = sample_of_gradient(gradient).place;
    progress.witness_place = place >= 0 && has_number_at(gradient, place) ? place : -1;
    return progress.witness_place >= 0;
  });
  if (progress.witness < 0 && core.settings.accumulate > 1)
    progress.witness = find_gradient(core, mine, may_hold_numbers);  // such as the few rows of an embedding
  for (const auto& observer : core.observers) observer->gradients_wait({core, mine, call});
}

void look_for_dropped(const OptimizerCore& core, ReplicaPart& mine) {
  GradientProgress& progress = mine.progress;
  const bool is_blank = progress.witness < 0;
  if (progress.accumulated > 0 && is_blank) progress.blank_calls = progress.accumulated;
  if (is_blank || !are_dropped(core, mine)) return;
  if (progress.accumulated == 0) return drop_gradients(core, mine);
  progress.dropped_calls = progress.accumulated;
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
  if (core.has_failed_run(mine)) return true;
  if (!are_dropped(core, mine)) return false;
  warn_of_ended_window(core, mine, "zero_grad() of the model", mine.progress.accumulated);
  return true;
}

void warn_of_ended_window(const OptimizerCore& core, const ReplicaPart& mine, const char* call, int calls) {
  if (calls == 0 || mine.index != 0 || !core.ended_window.is_first()) return;
  say_warning(lockstep::str(call, " has ended an accumulation window: the gradients of ", counted(calls, "call"),
                            " of minimize out of ", core.settings.accumulate,
                            " are dropped without an update. minimize forgets gradients by itself after each update; "
                            "leave zero_grad() out"));
}

}  // namespace lockstep::detail
