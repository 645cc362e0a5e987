#include "lockstep/nn/step/given_gradients.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

constexpr const char* kCall = "apply_gradients";

[[noreturn]] void refuse_gradients(std::string what, std::string seen, std::string help) {
  throw InvalidArgument(errors::kOptimizer,
                        {.what = std::move(what), .where = kCall, .seen = std::move(seen), .help = std::move(help)});
}

void require_fitting(const std::string& name, const at::Tensor& leaf, const at::Tensor& gradient) {
  const auto describe = [](const at::Tensor& tensor) {
    return lockstep::str(tensor.scalar_type(), " of shape ", tensor.sizes(), " on ", tensor.device());
  };
  if (gradient.sizes() == leaf.sizes() && gradient.scalar_type() == leaf.scalar_type() &&
      gradient.device() == leaf.device())
    return;
  refuse_gradients(lockstep::str("the gradient of '", name, "' does not fit it"),
                   lockstep::str("a gradient ", describe(gradient), " for a parameter ", describe(leaf)),
                   "give a gradient of the parameter's shape, dtype and device, or an undefined tensor for none");
}

/// Mixes a gradient into a mark that most likely differs if gradients do. A double holds it exactly.
double marked(double mark, const at::Tensor& gradient) {
  std::uint64_t bits = 0;
  if (gradient.defined() && gradient.numel() > 0 && gradient.layout() == at::kStrided) {
    const at::Tensor element = gradient.flatten()[gradient.numel() / 2].cpu().contiguous();
    std::memcpy(&bits, element.const_data_ptr(), std::min<std::size_t>(element.element_size(), sizeof bits));
  }
  bits += gradient.defined() ? 1 : 0;
  return static_cast<double>(((static_cast<std::uint64_t>(mark) * 31 + bits) * 0x9E3779B97F4A7C15U) >> 12);
}

}  // namespace

NamedGradients with_names(const OptimizerCore& core, const std::vector<at::Tensor>& gradients) {
  const auto parameters = core.module->parameters_of(0);
  if (gradients.size() != parameters.size())
    refuse_gradients(lockstep::str("the model has ", counted(static_cast<std::int64_t>(parameters.size()), "parameter"),
                                   ", got ", counted(static_cast<std::int64_t>(gradients.size()), "gradient")),
                     "", "give one for each of model->parameters(), in their order: an undefined tensor for none");
  NamedGradients named;
  for (std::size_t p = 0; p < gradients.size(); ++p) named.insert(parameters[p].key(), gradients[p]);
  return named;
}

void take_gradients(const OptimizerCore& core, ReplicaPart& mine, const NamedGradients& given, GradientsOf whose) {
  if (begins_anew(core, mine)) drop_gradients(core, mine);
  if (mine.progress.stage != GradientStage::None)
    throw_misuse("gradients of an earlier backward wait for their step", "call step() or zero_grad() first", kCall);
  const auto& parameters = core.module->parameters();
  const auto k = static_cast<std::size_t>(mine.index);
  const auto named = core.module->parameters_of(k);
  std::vector<at::Tensor> fitting(parameters.size());
  for (const auto& item : given) {
    const at::Tensor* const leaf = named.find(item.key());
    if (leaf == nullptr)
      refuse_gradients(lockstep::str("the model has no parameter '", item.key(), "'"), "",
                       "name gradients as model.named_parameters() names parameters");
    if (!item.value().defined()) continue;
    require_fitting(item.key(), *leaf, item.value());
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const auto& parameter) { return parameter.leaves[k].is_same(*leaf); });
    const auto p = static_cast<std::size_t>(found - parameters.begin());
    // A tied parameter has several names; autograd gives the whole gradient under each.
    if (found != parameters.end() && core.group_of[p] >= 0 && !fitting[p].defined()) fitting[p] = item.value().detach();
  }
  // One replica's are the sum already: the others count as zero.
  const bool is_first = mine.index == 0 && core.module->strategy().is_chief();
  const bool are_counted = whose == GradientsOf::ThisReplica || is_first;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    if (whose == GradientsOf::AllReplicas) mine.progress.given_mark = marked(mine.progress.given_mark, fitting[p]);
    at::Tensor leaf = parameters[p].leaves[k];
    leaf.mutable_grad() = are_counted ? fitting[p] : at::Tensor();
  }
  mine.progress.stage = GradientStage::Computed;
}

}  // namespace lockstep::detail
