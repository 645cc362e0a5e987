#include "lockstep/nn/tensor_digest.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/owner_plan.h"
#include "lockstep/nn/step/device_step.h"

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

namespace detail {
namespace {

bool has_copies(const ModuleCore::Parameter& parameter) {
  return std::any_of(parameter.leaves.begin(), parameter.leaves.end(), [&](const at::Tensor& leaf) {
    return leaf.const_data_ptr() != parameter.leaves[0].const_data_ptr();
  });
}

void add_buffers(const ModuleCore& module, std::size_t replica, std::vector<TensorDigest>& digests) {
  for (const auto& buffer : module.buffers_of(replica)) {
    if (buffer.value().defined())
      digests.push_back({lockstep::str("buffer '", buffer.key(), "'"), digest_of(buffer.value())});
  }
}

}  // namespace

std::vector<TensorDigest> digests_of_replica(const OptimizerCore& core, std::size_t replica, bool buffers) {
  std::vector<TensorDigest> digests;
  const ModuleCore& module = *core.module;
  for (const auto& parameter : module.parameters()) {
    if (has_copies(parameter))
      digests.push_back({lockstep::str("'", parameter.name, "'"), digest_of(parameter.leaves[replica])});
  }
  if (buffers) add_buffers(module, replica, digests);
  if (!core.cls.knows_state) return digests;
  ReplicaPart& part = *core.replicas[replica];
  settle_counts(core, part);
  const auto& states = part.inner->state();
  for (const OwnedSegment& segment : part.owned) {
    const auto found = states.find(segment.weights.unsafeGetTensorImpl());
    if (found == states.end()) continue;
    const std::string& name = module.parameters()[static_cast<std::size_t>(segment.where.parameter)].name;
    for (const auto& [key, value] : core.cls.read_state(*found->second)) {
      if (value.defined() && value.dim() == 0)
        digests.push_back({lockstep::str("optimizer state '", key, "' of '", name, "'"), digest_of(value)});
    }
  }
  return digests;
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
  if (buffers) add_buffers(*core.module, 0, digests);
  return digests;
}

}  // namespace detail
}  // namespace lockstep
