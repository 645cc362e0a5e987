#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/save/optimizer_entries.h"
#include "lockstep/nn/save/same_model.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/save/saved_metadata.h"
#include "lockstep/nn/save/tensor_file.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/version.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_name(const std::string& name, const char* why) {
  throw InvalidArgument(errors::kWrongModule, {.what = str("'", name, "' cannot be saved: ", why),
                                               .where = "save",
                                               .help = "register the parameter or buffer under another name"});
}

void add_model(const detail::ModuleCore& model, bool this_worker_only, detail::TensorMap& tensors) {
  const auto add = [&](const std::string& name, const at::Tensor& value) {
    if (detail::is_optimizer_entry(name)) refuse_name(name, "names with 'optimizer/' in front are an optimizer's");
    detail::require_savable_member(name, value);
    if (!tensors.emplace(name, value).second) refuse_name(name, "a parameter and a buffer have this name");
  };
  for (const auto& parameter : model.parameters()) add(parameter.name, parameter.leaves[0]);
  for (const auto& buffer : this_worker_only ? model.named_buffers_here() : model.named_buffers()) {
    if (buffer.value().defined()) add(buffer.key(), buffer.value());
  }
}

}  // namespace

std::string detail::class_of(const OptimizerCore& optimizer) {
  const torch::optim::Optimizer& inner = *optimizer.replicas[0]->inner;
  return c10::demangle(typeid(inner).name());
}

void detail::require_same_model(const ModuleCore& model, const OptimizerCore& optimizer, const char* operation) {
  if (optimizer.module.get() == &model) return;
  throw InvalidArgument(errors::kSavedState,
                        {.what = "the optimizer was made for another model",
                         .where = operation,
                         .help = "give the model that make_optimizer got, and a file to each pair"});
}

void detail::save_model(const std::string& path, const ModuleCore& model, const OptimizerCore* optimizer,
                        const SaveOptions& options, const std::source_location& where) {
  const CallPlace place(where);
  require_outside_of_run("save");
  require_no_run_elsewhere(model.strategy(), "save");
  const std::uint64_t runs = StrategyAccess::runs(model.strategy()).begun;
  model.require_unchanged();
  if (model.is_torn()) {
    throw FailedPrecondition(errors::kTornWeights, {.what = "the weights are torn: an update failed half-way",
                                                    .where = "save",
                                                    .help = "load the last good file: ls::load(path, model)"});
  }
  data::SafetensorsMetadata metadata{{kPythonFormatKey, kPythonFormat},
                                     {kVersionKey, LOCKSTEP_VERSION},
                                     {kSeedKey, std::to_string(model.strategy().seed())}};
  TensorMap tensors;
  add_model(model, options.this_worker_only, tensors);
  if (optimizer != nullptr) {
    require_same_model(model, *optimizer, "save");
    add_optimizer_entries(read_state(*optimizer), tensors);
    metadata[kStepsKey] = std::to_string(optimizer->replicas[0]->steps);
    metadata[kOptimizerKey] = class_of(*optimizer);
    for (std::size_t p = 0; p < model.parameters().size(); ++p) {
      if (optimizer->group_of[p] < 0) metadata[kNotOptimizedKey + model.parameters()[p].name] = "";
    }
  }
  const auto require_same_weights = [&] {  // the file is written from the weights themselves
    if (StrategyAccess::runs(model.strategy()).begun == runs) return;
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = "another thread has called strategy.run while the model was saved",
                              .where = str("save to ", path),
                              .seen = "the file has not been written",
                              .help = "save between two runs, on the thread that runs them"});
  };
  const auto write = [&] { write_tensors(path, tensors, metadata, require_same_weights); };
  options.this_worker_only ? write() : do_on_chief(model.strategy(), "save", write);
}

void save(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  detail::require_outside_of_run("save");
  detail::write_tensors(path, tensors,
                        {{detail::kPythonFormatKey, detail::kPythonFormat}, {detail::kVersionKey, LOCKSTEP_VERSION}});
}

}  // namespace lockstep
