#include "lockstep/nn/guards/drift.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/meeting.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {

/// The digests of a replica on a GPU after a step.
struct SentDigests {
  std::int64_t calls = 0;  ///< steps since digests are compared, including skipped ones
  bool is_there = false;   ///< the following has not been compared yet
  std::int64_t step = 0;
  std::vector<TensorDigest> known = {};  ///< digests of tensors on the host
  std::vector<std::string> names = {};
  at::Tensor values = {};                      ///< one 64-bit number per tensor, in pinned memory
  std::shared_ptr<gpu::Arrival> arrival = {};  ///< when these arrive; null if there are none
  bool is_compared = false;                    ///< in a meeting that the replica may not have left yet
};

namespace {

std::vector<TensorDigest> arrived(const SentDigests& sent) {
  if (!sent.is_there) return {};
  std::vector<TensorDigest> digests = sent.known;
  for (std::size_t i = 0; i < sent.names.size(); ++i)
    digests.push_back({sent.names[i], static_cast<std::uint64_t>(const_data<std::int64_t>(sent.values)[i])});
  return digests;
}

/// Every replica makes the same comparison and gets the same answer.
void compare_replicas(const OptimizerCore& core, const ReplicaPart& mine) {
  const std::vector<TensorDigest> digests =
      digests_of_replica(core, static_cast<std::size_t>(mine.index), core.settings.digest.buffers);
  meet(
      "digest", {&core, "step", 0, &digests},
      [&] {
        std::vector<const std::vector<TensorDigest>*> all;
        for_each_payload(digests, [&](const std::vector<TensorDigest>& theirs) { all.push_back(&theirs); });
        require_no_difference(all, mine.steps);
      },
      WaitFor::Ever);
}

/// Replicas of one worker share their weights; different workers have separate ones.
void compare_workers(const OptimizerCore& core, const ReplicaPart& mine, WorkerGroup& workers) {
  const auto compare = [&] {
    // The replicas of this worker were just found equal, so the first one's buffers represent all.
    const std::vector<TensorDigest> here = digests_while_replicas_wait(core, core.settings.digest.buffers);
    std::vector<std::int64_t> numbers;
    for (const TensorDigest& each : here) numbers.push_back(static_cast<std::int64_t>(each.value));
    const Deadline deadline = deadline_of(core.module->strategy().communication());
    const auto gathered = workers::all_gather(workers, {at::tensor(numbers)}, "digests of the training", deadline);
    std::vector<std::vector<TensorDigest>> all(gathered.size(), here);
    std::vector<const std::vector<TensorDigest>*> pointers;
    for (std::size_t w = 0; w < all.size(); ++w) {
      for (std::size_t i = 0; i < here.size(); ++i)
        all[w][i].value = static_cast<std::uint64_t>(const_data<std::int64_t>(gathered[w])[i]);
      pointers.push_back(&all[w]);
    }
    const auto difference = find_difference(pointers);
    if (!difference) return;
    throw DataLoss(errors::kDrift,
                   {.what = str(difference->name, " of worker ", difference->replica, " differs from worker ",
                                difference->agreed_with, "'s"),
                    .where = str("after step ", mine.steps),
                    .seen = "their digests differ",
                    .help = "restore a checkpoint; look for code that changes weights in another way on "
                            "one worker, for different machines, or for bad memory"});
  };
  get_replica_context().seat()->lead("digests of workers", nullptr, compare);
}

}  // namespace

Drift::Drift(const OptimizerCore& core)
    : sends_(core.module->strategy().replica_context(0).device().is_cuda() && !core.module->copies().is_mixed &&
             StrategyAccess::workers(core.module->strategy()) == nullptr),
      sent_(core.replicas.size()) {}

Drift::~Drift() = default;

void Drift::gradients_shown(const StepMoment& moment) {
  SentDigests& mine = sent_[static_cast<std::size_t>(moment.replica())];
  if (std::exchange(mine.is_compared, false)) mine.is_there = false;
  if (mine.is_there && mine.arrival && !moment.core.is_recording()) mine.arrival->wait_on_host();
}

void Drift::agreed(const StepMoment& moment) {
  if (!sends_) return;
  sent_[static_cast<std::size_t>(moment.replica())].is_compared = true;
  require_no_difference_in_sent();
}

void Drift::updated(const StepMoment& moment) {
  const std::int64_t every = moment.core.settings.digest.every;
  if (every == 0) return;
  ReplicaPart& part = *moment.core.replicas[static_cast<std::size_t>(moment.replica())];
  if (sends_) {
    if (++sent_[static_cast<std::size_t>(part.index)].calls % every == 0) send(moment);
    return;
  }
  settle_checks(moment.core, part);
  if (part.steps % every != 0) return;
  compare_replicas(moment.core, part);
  if (WorkerGroup* const workers = StrategyAccess::workers(moment.core.module->strategy()))
    compare_workers(moment.core, part, *workers);
}

void Drift::send(const StepMoment& moment) {
  const OptimizerCore& core = moment.core;
  SentDigests sent{
      .calls = sent_[static_cast<std::size_t>(moment.replica())].calls, .is_there = true, .step = moment.steps()};
  std::vector<at::Tensor> values;
  const auto add = [&](const std::string& name, const at::Tensor& value) {
    sent.names.push_back(name);
    values.push_back(value.reshape({1}));
  };
  const at::Tensor counts = counts_on_device(moment.part);
  for (const auto& [name, tensor] :
       compared_tensors(core, static_cast<std::size_t>(moment.replica()), core.settings.digest.buffers))
    add(name, digest_on_device(tensor));
  for (std::size_t i = 0; counts.defined() && i < moment.part.owned.size(); ++i)
    add(name_of_state(core, moment.part.owned[i], "step"), counts[static_cast<std::int64_t>(i)]);
  if (!counts.defined())
    sent.known = digests_of_state(core, *core.replicas[static_cast<std::size_t>(moment.replica())]);
  if (!values.empty()) {
    sent.values = gpu::make_pinned({static_cast<std::int64_t>(values.size())}, at::kLong);
    sent.values.copy_(at::cat(values), /*non_blocking=*/true);
    sent.arrival = gpu::mark_this_stream(values.front().device());
  }
  sent_[static_cast<std::size_t>(moment.replica())] = std::move(sent);
}

void Drift::require_no_difference_in_sent() const {
  if (!sent_.front().is_there) return;
  std::vector<std::vector<TensorDigest>> all;
  for (const SentDigests& each : sent_) all.push_back(arrived(each));
  std::vector<const std::vector<TensorDigest>*> pointers;
  for (const auto& each : all) pointers.push_back(&each);
  require_no_difference(pointers, sent_.front().step);
}

void Drift::settle() {
  for (SentDigests& each : sent_) {
    if (std::exchange(each.is_compared, false)) each.is_there = false;
    if (each.is_there && each.arrival) each.arrival->wait_on_host();
  }
  struct Forget {
    ~Forget() { drift.forget(); }
    Drift& drift;
  };
  const Forget at_the_end{*this};
  require_no_difference_in_sent();
}

void Drift::forget() {
  for (SentDigests& each : sent_) each.is_there = each.is_compared = false;
}

std::shared_ptr<Drift> make_drift(const OptimizerCore& core) { return std::make_shared<Drift>(core); }

}  // namespace lockstep::detail
