#include "lockstep/nn/step/sent_digests.h"

#include <ATen/ops/cat.h>

#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {
namespace {

std::vector<TensorDigest> arrived(const SentDigests& sent) {
  std::vector<TensorDigest> digests = sent.known;
  for (std::size_t i = 0; i < sent.names.size(); ++i)
    digests.push_back({sent.names[i], static_cast<std::uint64_t>(const_data<std::int64_t>(sent.values)[i])});
  return digests;
}

void send_digests(const OptimizerCore& core, ReplicaPart& mine) {
  SentDigests sent{.step = mine.steps};
  std::vector<at::Tensor> values;
  const auto add = [&](const std::string& name, const at::Tensor& value) {
    sent.names.push_back(name);
    values.push_back(value.reshape({1}));
  };
  const at::Tensor counts = counts_on_device(mine);
  for (const auto& [name, tensor] :
       compared_tensors(core, static_cast<std::size_t>(mine.index), core.settings.digest.buffers))
    add(name, digest_on_device(tensor));
  for (std::size_t i = 0; counts.defined() && i < mine.owned.size(); ++i)
    add(name_of_state(core, mine.owned[i], "step"), counts[static_cast<std::int64_t>(i)]);
  if (!counts.defined()) sent.known = digests_of_state(core, mine);
  if (!values.empty()) {
    sent.values = gpu::make_pinned({static_cast<std::int64_t>(values.size())}, at::kLong);
    sent.values.copy_(at::cat(values), /*non_blocking=*/true);
    sent.arrival = gpu::mark_this_stream(values.front().device());
  }
  mine.digests = std::move(sent);
}

}  // namespace

void send_due_digests(const OptimizerCore& core, ReplicaPart& mine) {
  const std::int64_t every = core.settings.digest.every;
  if (every > 0 && ++mine.digest_calls % every == 0) send_digests(core, mine);
}

void receive_digests(const ReplicaPart& mine) {
  if (mine.digests && mine.digests->arrival) mine.digests->arrival->wait_on_host();
}

void require_equal_digests(const OptimizerCore& core) {
  if (!core.replicas.front()->digests) return;
  std::vector<std::vector<TensorDigest>> all;
  for (const auto& part : core.replicas)
    all.push_back(part->digests ? arrived(*part->digests) : std::vector<TensorDigest>());
  std::vector<const std::vector<TensorDigest>*> pointers;
  for (const auto& each : all) pointers.push_back(&each);
  require_no_difference(pointers, core.replicas.front()->digests->step);
}

void settle_digests(const OptimizerCore& core) {
  for (const auto& part : core.replicas) receive_digests(*part);
  struct Forget {
    ~Forget() {
      for (const auto& part : core.replicas) part->digests.reset();
    }
    const OptimizerCore& core;
  };
  const Forget at_the_end{core};
  require_equal_digests(core);
}

}  // namespace lockstep::detail
