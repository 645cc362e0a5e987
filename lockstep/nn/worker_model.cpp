#include "lockstep/nn/worker_model.h"

#include <ATen/core/grad_mode.h>

#include "lockstep/base/text.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {
namespace {

using Named = torch::OrderedDict<std::string, at::Tensor>;

std::string form_of(const char* what, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return lockstep::str(what, " ", name, ": undefined");
  return lockstep::str(what, " ", name, ": ", tensor.scalar_type(), tensor.sizes(),
                       tensor.requires_grad() ? ", trained" : "");
}

}  // namespace

void take_chiefs_values(const ModuleCore& model) {
  const Strategy& strategy = model.strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  const Named buffers = model.buffers_of(0);
  std::vector<std::string> lines;
  for (const auto& parameter : model.parameters())
    lines.push_back(form_of("parameter", parameter.name, parameter.leaves[0]));
  for (const auto& buffer : buffers) lines.push_back(form_of("buffer", buffer.key(), buffer.value()));
  workers->require_same("model", lines);

  const at::NoGradGuard no_grad;
  const auto take = [&](at::Tensor value, const std::string& name) {
    if (value.defined() && value.numel() > 0)
      value.copy_(
          workers::broadcast(*workers, value, "initial value of " + name, deadline_of(strategy.communication())));
  };
  for (const auto& parameter : model.parameters()) take(parameter.leaves[0].detach(), parameter.name);
  for (const auto& buffer : buffers) take(buffer.value(), buffer.key());
}

std::vector<Named> buffers_of_all_workers(const ModuleCore& model) {
  std::vector<Named> here;
  for (std::size_t k = 0; k < model.size(); ++k) here.push_back(model.buffers_of(k));
  const Strategy& strategy = model.strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr || here[0].is_empty()) return here;

  std::vector<at::Tensor> mine;
  for (const Named& buffers : here) {
    for (const auto& item : buffers) {
      if (item.value().defined()) mine.push_back(item.value());
    }
  }
  const auto all = workers::all_gather(*workers, mine, "buffers of a model", deadline_of(strategy.communication()));
  std::vector<Named> result;
  auto next = all.begin();
  for (int k = 0; k < workers->all_replicas(); ++k) {
    Named buffers;
    for (const auto& item : here[0]) buffers.insert(item.key(), item.value().defined() ? *next++ : item.value());
    result.push_back(std::move(buffers));
  }
  return result;
}

}  // namespace lockstep::detail
