#include "lockstep/nn/tensor_digest.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/owner_plan.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/strategy/replica_name.h"

namespace lockstep {

std::uint64_t digest_of(const at::Tensor& tensor) {
  const at::Tensor strided = tensor.layout() == at::kStrided ? tensor.detach() : tensor.detach().to_dense();
  const at::Tensor values = strided.cpu().contiguous();
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  const auto width = static_cast<std::size_t>(values.element_size());
  std::uint64_t digest = 0;
  for (std::int64_t begin = 0; begin < values.numel(); begin += kShardBlock) {
    const auto count = static_cast<std::size_t>(std::min(kShardBlock, values.numel() - begin));
    digest += place_block(digest_bytes(bytes + static_cast<std::size_t>(begin) * width, count * width),
                          static_cast<std::uint64_t>(begin / kShardBlock));
  }
  return digest;
}

at::Tensor digest_on_device(const at::Tensor& tensor) {
  constexpr std::int64_t kWord = 8, kMostWords = 1 << 24;  // at a time, to limit memory
  constexpr auto kOdd = static_cast<std::int64_t>(0x9E3779B97F4A7C15u);
  constexpr auto kOther = static_cast<std::int64_t>(0xBF58476D1CE4E5B9u);
  const at::Tensor strided = tensor.layout() == at::kStrided ? tensor.detach() : tensor.detach().to_dense();
  at::Tensor bytes = strided.contiguous().reshape({-1}).view(at::kByte);
  const std::int64_t size = bytes.numel();
  if (size % kWord != 0) bytes = at::constant_pad_nd(bytes, {0, kWord - size % kWord});
  const at::Tensor words = bytes.view(at::kLong);
  at::Tensor digest = at::full({}, size, words.options());
  for (std::int64_t begin = 0; begin < words.numel(); begin += kMostWords) {
    const std::int64_t end = std::min(words.numel(), begin + kMostWords);
    // A bijection of each word at its place: a changed one cannot be lost.
    at::Tensor mixed = at::arange(begin + 1, end + 1, words.options()).mul_(kOdd);
    mixed.bitwise_xor_(words.slice(0, begin, end)).mul_(kOther);
    mixed.bitwise_xor_(at::bitwise_right_shift(mixed, 29).bitwise_and_((std::int64_t{1} << 35) - 1)).mul_(kOdd);
    digest.add_(mixed.sum());
  }
  return digest;
}

namespace detail {
namespace {

bool has_copies(const ModuleCore::Parameter& parameter) {
  return std::any_of(parameter.leaves.begin(), parameter.leaves.end(), [&](const at::Tensor& leaf) {
    return leaf.const_data_ptr() != parameter.leaves[0].const_data_ptr();
  });
}

void add_buffers(const ModuleCore& module, std::size_t replica, std::vector<NamedTensor>& tensors) {
  for (const auto& buffer : module.buffers_of(replica)) {
    if (buffer.value().defined()) tensors.emplace_back(lockstep::str("buffer '", buffer.key(), "'"), buffer.value());
  }
}

void add_digests(const std::vector<NamedTensor>& tensors, std::vector<TensorDigest>& digests) {
  for (const auto& [name, tensor] : tensors) digests.push_back({name, digest_of(tensor)});
}

}  // namespace

std::string name_of_state(const OptimizerCore& core, const OwnedSegment& segment, const std::string& key) {
  const std::string& name = core.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].name;
  return lockstep::str("optimizer state '", key, "' of '", name, "'");
}

std::vector<NamedTensor> compared_tensors(const OptimizerCore& core, std::size_t replica, bool buffers) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : core.module->parameters()) {
    if (has_copies(parameter)) tensors.emplace_back(lockstep::str("'", parameter.name, "'"), parameter.leaves[replica]);
  }
  if (buffers) add_buffers(*core.module, replica, tensors);
  return tensors;
}

std::vector<TensorDigest> digests_of_state(const OptimizerCore& core, ReplicaPart& part) {
  std::vector<TensorDigest> digests;
  if (!core.cls.knows_state) return digests;
  settle_counts(core, part);
  const auto& states = part.inner->state();
  for (const OwnedSegment& segment : part.owned) {
    const auto found = states.find(segment.weights.unsafeGetTensorImpl());
    if (found == states.end()) continue;
    for (const auto& [key, value] : core.cls.read_state(*found->second)) {
      if (value.defined() && value.dim() == 0) digests.push_back({name_of_state(core, segment, key), digest_of(value)});
    }
  }
  return digests;
}

std::vector<TensorDigest> digests_of_replica(const OptimizerCore& core, std::size_t replica, bool buffers) {
  std::vector<TensorDigest> digests;
  add_digests(compared_tensors(core, replica, buffers), digests);
  for (TensorDigest& each : digests_of_state(core, *core.replicas[replica])) digests.push_back(std::move(each));
  return digests;
}

void require_no_difference(const std::vector<const std::vector<TensorDigest>*>& by_replica, std::int64_t step) {
  const auto difference = find_difference(by_replica);
  if (!difference) return;
  throw DataLoss(errors::kDrift,
                 {.what = str(difference->name, " of ", replica_name(static_cast<std::size_t>(difference->replica)),
                              " differs from ", replica_name(static_cast<std::size_t>(difference->agreed_with)), "'s"),
                  .where = str("after step ", step),
                  .seen = "their digests differ",
                  .help = "restore a checkpoint; look for code that writes to one replica's module only, or for bad "
                          "memory"});
}

std::vector<TensorDigest> digests_of_training(const OptimizerCore& core) {
  if (core.cls.knows_state) require_readable_state(core, "digests");
  return digests_while_replicas_wait(core);
}

std::vector<TensorDigest> digests_while_replicas_wait(const OptimizerCore& core, bool buffers) {
  std::vector<TensorDigest> digests;
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    digests.push_back({parameters[p].name, digest_of(parameters[p].leaves[0])});
    if (!core.cls.knows_state || core.group_of[p] < 0) continue;
    for (const auto& [key, value] : gather_state(core, static_cast<int>(p)))
      digests.push_back({parameters[p].name + "/" + key, digest_of(value)});
  }
  std::vector<NamedTensor> others;
  if (buffers) add_buffers(*core.module, 0, others);
  add_digests(others, digests);
  return digests;
}

}  // namespace detail
}  // namespace lockstep
