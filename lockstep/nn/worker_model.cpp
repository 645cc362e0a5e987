#include "lockstep/nn/worker_model.h"

#include <ATen/core/grad_mode.h>

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/nn/module_watch.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/save/optimizer_entries.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/same_on_workers.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {
namespace {

using Named = torch::OrderedDict<std::string, at::Tensor>;

/// Sparse tensors, and those that cannot be written to, stay where they are: all workers must have made the same ones.
bool travels(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !has_shared_elements(tensor);
}

std::string form_of(const char* what, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return lockstep::str(what, " ", name, ": undefined");
  std::string form = lockstep::str(what, " ", name, ": ", tensor.scalar_type(), tensor.sizes(),
                                   tensor.requires_grad() ? ", trained" : "");
  if (travels(tensor)) return form;
  form += lockstep::str(", ", tensor.layout(), " with the digests");
  for (const at::Tensor& part : dense_parts_of(tensor)) form += lockstep::str(' ', digest_of(part));
  return form;
}

OptimizerState chiefs_state(WorkerGroup& workers, const OptimizerState& mine, const Deadline& deadline) {
  const bool is_chief = workers.rank() == 0;
  workers::Texts parameters;  // those that no step has reached have no entries, and must be told too
  workers::Texts names;
  TensorMap entries;
  add_optimizer_entries(mine, entries);
  for (const auto& [parameter, values] : mine) parameters.push_back(parameter);
  for (const auto& [name, value] : entries) names.push_back(name);
  parameters = workers::broadcast_texts(workers, parameters, "parameters of an optimizer", deadline);
  names = workers::broadcast_texts(workers, names, "names of an optimizer's state", deadline);
  for (const std::string& name : names)
    entries[name] = workers::broadcast(workers, is_chief ? entries.at(name) : at::Tensor(), name, deadline);
  OptimizerState state = optimizer_state_of(entries);
  for (const std::string& parameter : parameters) state[parameter];
  at::Tensor& steps = state[""]["steps"];
  steps = workers::broadcast(workers, is_chief ? mine.at("").at("steps") : steps, "steps of an optimizer", deadline);
  return state;
}

}  // namespace

void do_on_chief(const Strategy& strategy, const char* what, FunctionRef<void()> act) {
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return act();
  std::exception_ptr failure;
  std::string seen;
  if (workers->rank() == 0) {
    try {
      act();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      seen = *error.what() != '\0' ? error.what() : "unknown";
    }
  }
  const auto name = lockstep::str("outcome of ", what);
  seen = workers::broadcast_texts(*workers, {seen}, name, deadline_of(strategy.communication()))[0];
  if (failure) std::rethrow_exception(failure);
  if (seen.empty()) return;
  throw FailedPrecondition(errors::kPeerFailed, {.what = lockstep::str(what, " failed on the chief"),
                                                 .seen = seen,
                                                 .help = lockstep::str("fix the cause that `seen` names, then call ",
                                                                       what, " again on every worker")});
}

void share_chiefs_training(ModuleCore& model, OptimizerCore* optimizer) {
  const Strategy& strategy = model.strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  const at::NoGradGuard no_grad;
  const Deadline deadline = deadline_of(strategy.communication());
  for (const auto& [name, components] : model.tensors()) {
    if (components[0].numel() > 0)
      write_to_all(components, workers::broadcast(*workers, components[0], name, deadline));
  }
  const bool is_chief = workers->rank() == 0;
  const bool is_torn = workers::sum(*workers, is_chief && model.is_torn() ? 1 : 0, "torn weights", deadline) > 0;
  model.set_torn(is_torn);
  model.watch().expect_other_weights();
  model.note_equal_buffers();
  forget_cast_weights();
  if (optimizer == nullptr) return;
  const OptimizerState state = chiefs_state(*workers, is_chief ? read_state(*optimizer) : OptimizerState(), deadline);
  if (!is_chief) write_state(*optimizer, state);
}

void take_chiefs_values(const ModuleCore& model) {
  const Strategy& strategy = model.strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  const Named buffers = model.buffers_of(0);
  workers::Texts lines;
  for (const auto& parameter : model.parameters())
    lines.push_back(form_of("parameter", parameter.name, parameter.leaves[0]));
  for (const auto& buffer : buffers) lines.push_back(form_of("buffer", buffer.key(), buffer.value()));
  workers::require_same(*workers, {.what = "model", .lines = std::move(lines)}, "make: model",
                        deadline_of(strategy.communication()));

  const at::NoGradGuard no_grad;
  const auto take = [&](at::Tensor value, const std::string& name) {
    if (travels(value) && value.numel() > 0)
      value.copy_(
          workers::broadcast(*workers, value, "initial value of " + name, deadline_of(strategy.communication())));
  };
  for (const auto& parameter : model.parameters()) take(parameter.leaves[0].detach(), parameter.name);
  for (const auto& buffer : buffers) take(buffer.value(), buffer.key());
}

void require_same_weights(const ModuleCore& model) {
  workers::Texts lines;
  for (const auto& parameter : model.parameters())
    lines.push_back(lockstep::str("parameter ", parameter.name, " with the digest ", digest_of(parameter.leaves[0])));
  workers::require_same(*StrategyAccess::workers(model.strategy()),
                        {.what = "model after its update",
                         .lines = std::move(lines),
                         .help = "change the weights by what all towers share; call model.synchronize_buffers() before "
                                 "if the change depends on buffers"},
                        "update of a model", deadline_of(model.strategy().communication()));
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
      if (travels(item.value())) mine.push_back(item.value());
    }
  }
  const auto all = workers::all_gather(*workers, mine, "buffers of a model", deadline_of(strategy.communication()));
  std::vector<Named> result;
  auto next = all.begin();
  for (int k = 0; k < workers->all_replicas(); ++k) {
    Named buffers;
    for (const auto& item : here[0]) buffers.insert(item.key(), travels(item.value()) ? *next++ : item.value());
    result.push_back(std::move(buffers));
  }
  return result;
}

}  // namespace lockstep::detail
