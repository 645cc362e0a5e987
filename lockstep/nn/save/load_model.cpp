#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/digest.h"
#include "lockstep/nn/module_watch.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/save/load_plan.h"
#include "lockstep/nn/save/optimizer_entries.h"
#include "lockstep/nn/save/same_model.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/save/saved_metadata.h"
#include "lockstep/nn/save/tensor_file.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

// Loading has two halves: everything that can fail, which changes nothing, and copying, which cannot fail.
namespace lockstep {
namespace {

using data::SafetensorsEntry;
using data::SafetensorsFile;
using detail::LoadPlan;

/// The weights and buffers of a model: their possible names in a file, and their tensors on all replicas.
struct ModelTensors {
  explicit ModelTensors(const detail::ModuleCore& model) : all(model.tensors()) {
    std::unordered_map<const void*, std::size_t> index_of;
    for (std::size_t i = 0; i < all.size(); ++i) index_of.emplace(all[i].leaves[0].unsafeGetTensorImpl(), i);
    for (const auto& item : model.named_parameters())
      add_name(item.key(), index_of.at(item.value().unsafeGetTensorImpl()));
    for (std::size_t i = model.parameters().size(); i < all.size(); ++i) add_name(all[i].name, i);
  }

  std::vector<detail::ModuleCore::Parameter> all;
  std::vector<detail::LoadTarget> targets;

 private:
  void add_name(const std::string& name, std::size_t tensor) {
    const at::Tensor& first = all[tensor].leaves[0];
    targets.push_back({name, detail::file_type_name(first.scalar_type()), first.sizes().vec(), tensor});
  }
};

[[noreturn]] void refuse(const std::string& path, const std::string& what, std::string seen, std::string help) {
  throw InvalidArgument(
      errors::kSavedState,
      {.what = what, .where = str("load of ", path), .seen = std::move(seen), .help = std::move(help)});
}

constexpr const char* kOtherOptimizerHelp =
    "load only the weights, ls::load(path, model), or make the optimizer that was saved, with its options; with "
    "{.strict = false}, Adam and AdamW take each other's state";

/// The entries of a file by name.
class NamedEntries {
 public:
  explicit NamedEntries(const SafetensorsFile& file) {
    for (const SafetensorsEntry& entry : file.tensors()) by_name_.emplace(entry.name, &entry);
  }
  const SafetensorsEntry& operator[](const std::string& name) const { return *by_name_.at(name); }

 private:
  std::unordered_map<std::string, const SafetensorsEntry*> by_name_;
};

std::int64_t saved_steps(const SafetensorsFile& file) {
  const auto found = file.metadata().find(detail::kStepsKey);
  if (found == file.metadata().end()) {
    refuse(file.path(), str(file.path(), " has no state of an optimizer"), "",
           "load only the model, ls::load(path, model), or save with ls::save(path, model, optimizer)");
  }
  const std::string& text = found->second;
  std::int64_t steps = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (failed != std::errc{} || end != text.data() + text.size() || steps < 0) {
    throw DataLoss(errors::kSafetensors, {.what = str("the number of steps in ", file.path(), " is not a number >= 0"),
                                          .where = str("metadata '", detail::kStepsKey, "'"),
                                          .help = "use another copy of the file, or save it again with ls::save"});
  }
  return steps;
}

/// Parameters that the optimizer updates, with their indices.
std::map<std::string, int> own_parameters(const detail::OptimizerCore& optimizer) {
  std::map<std::string, int> own;
  for (const auto& replica : optimizer.replicas) {
    for (const auto& segment : replica->owned) {
      const int p = segment.where.parameter;
      own.emplace(optimizer.module->parameters()[static_cast<std::size_t>(p)].name, p);
    }
  }
  return own;
}

/// "the optimizer (Adam in the file, SGD in the program)"; empty if the classes match, or the file does not name one.
std::string other_class(const detail::OptimizerCore& optimizer, const SafetensorsFile& file) {
  const auto saved = file.metadata().find(detail::kOptimizerKey);
  const std::string own = detail::class_of(optimizer);
  if (saved == file.metadata().end() || saved->second == own) return {};
  return str("the optimizer (", saved->second, " in the file, ", own, " in the program)");
}

/// The state for `load_state`. Adds to the plan's differences. State follows its weight: if that is not loaded, the
/// optimizer keeps its own.
OptimizerState state_for(const detail::OptimizerCore& optimizer, const SafetensorsFile& file, LoadPlan& plan) {
  const std::int64_t steps = saved_steps(file);
  const auto own = own_parameters(optimizer);
  std::set<std::size_t> loaded;
  for (const LoadPlan::Copy& copy : plan.copies) loaded.insert(copy.to);
  detail::TensorMap entries;
  for (const SafetensorsEntry& entry : file.tensors()) {
    if (!detail::is_optimizer_entry(entry.name)) continue;
    const auto parameter = own.find(std::string(detail::parameter_of_entry(entry.name)));
    if (parameter == own.end()) {
      plan.unexpected.push_back(entry.name);
    } else if (loaded.contains(static_cast<std::size_t>(parameter->second))) {
      entries[entry.name] = detail::copy_of(file, entry);
    }
  }
  std::ranges::sort(plan.unexpected);
  OptimizerState state = detail::optimizer_state_of(entries);
  for (const auto& [name, p] : own) {
    ParameterState& part = state[name];  // empty if the file has none: the parameter was never stepped
    if (file.metadata().contains(detail::kNotOptimizedKey + name))
      plan.missing.push_back(str(detail::kOptimizerPrefix, name));
    if (!loaded.contains(static_cast<std::size_t>(p))) part = detail::gather_state(optimizer, p);
  }
  state[""]["steps"] = at::scalar_tensor(steps, at::kLong);
  return state;
}

void require_equal_twins(const SafetensorsFile& file, const NamedEntries& entries, const LoadPlan& plan) {
  for (const auto& [first, second] : plan.twins) {
    if (file.bytes_of(entries[first]) == file.bytes_of(entries[second])) continue;
    refuse(file.path(), str("'", first, "' and '", second, "' are one tensor in the model and differ in the file"), "",
           "leave one of the two names out of the file, or make them equal");
  }
}

/// In an expanded tensor, for example, many elements share memory.
void require_writable(const std::string& path, const std::string& name, const std::vector<at::Tensor>& components,
                      const at::Tensor& value) {
  for (const at::Tensor& component : components) {
    if (!detail::has_shared_elements(component) || at::equal(component, value.to(component.device()))) continue;
    refuse(path, str("'", name, "' of the model cannot be written to: several of its elements share memory"), "",
           "give the module a buffer with memory of its own: register_buffer(name, tensor.clone())");
  }
}

void load_from_file(const SafetensorsFile& file, detail::ModuleCore& model, detail::OptimizerCore* optimizer,
                    const LoadOptions& options) {
  using namespace detail;
  const std::string& path = file.path();
  std::vector<SafetensorsEntry> entries;
  std::ranges::copy_if(file.tensors(), std::back_inserter(entries),
                       [](const SafetensorsEntry& entry) { return !is_optimizer_entry(entry.name); });
  const ModelTensors tensors(model);
  LoadPlan plan = plan_load(entries, tensors.targets);
  const bool sets_all_weights = plan.missing.empty() && plan.different.empty();
  std::optional<OptimizerState> state;
  if (optimizer != nullptr) state = state_for(*optimizer, file, plan);
  const std::string of_other_class = optimizer != nullptr ? other_class(*optimizer, file) : "";
  if (!of_other_class.empty() && options.strict) plan.different.push_back(of_other_class);
  if (!plan.fits() && options.strict) {
    refuse(path, str(path, " does not fit: ", count_differences(plan)), list_differences(plan),
           of_other_class.empty()
               ? "build model and optimizer as they were saved, or pass {.strict = false} to load what fits"
               : kOtherOptimizerHelp);
  }
  if (plan.copies.empty() && !tensors.targets.empty()) {
    refuse(path, str(path, " holds nothing that fits this model"), list_differences(plan),
           "build the model as it was saved; load_tensors(path) returns what the file holds, by name");
  }
  const NamedEntries named(file);
  require_equal_twins(file, named, plan);
  std::vector<at::Tensor> values;
  for (const LoadPlan::Copy& copy : plan.copies) {
    values.push_back(view_of(file, named[copy.from]));
    require_writable(path, copy.from, tensors.all[copy.to].leaves, values.back());
  }
  if (state) {
    try {
      write_state(*optimizer, *state);        // all of it, or nothing
    } catch (const InvalidArgument& error) {  // whose text is about load_state
      refuse(path, error.text().what, error.text().seen, kOtherOptimizerHelp);
    }
  }
  const bool have_equal_buffers = model.has_equal_buffers() || sets_all_weights;
  for (std::size_t i = 0; i < values.size(); ++i) write_to_all(tensors.all[plan.copies[i].to].leaves, values[i]);
  model.watch().expect_other_weights();
  forget_cast_weights();
  if (sets_all_weights) model.set_torn(false);
  if (have_equal_buffers) model.note_equal_buffers();
  if (!model.strategy().is_chief()) return;  // the chief warns for all
  if (!of_other_class.empty())
    say_warning(str("load of ", path, "continues with the state of a different class: ", of_other_class));
  if (!plan.fits()) say_warning(str("load of ", path, " has left out what does not fit: ", list_differences(plan)));
}

/// Makes it succeed or fail alike on all workers, though each loads separately.
void require_same_load(const Strategy& strategy, std::string_view bytes, bool with_optimizer,
                       const LoadOptions& options) {
  WorkerGroup* const workers = detail::StrategyAccess::workers(strategy);
  if (workers == nullptr) return;
  workers::require_same(*workers,
                        {.what = "load",
                         .lines = {str("an optimizer: ", with_optimizer ? "given" : "none"),
                                   str("strict: ", options.strict ? "true" : "false"),
                                   str("digest of the file: ", digest_bytes(bytes.data(), bytes.size()))},
                         .help = "call load with the same arguments on every worker, and write the file before"},
                        "load", deadline_of(strategy.communication()));
}

}  // namespace

void detail::load_model(const std::string& path, ModuleCore& model, OptimizerCore* optimizer,
                        const LoadOptions& options, const std::source_location& where) {
  const CallPlace place(where);
  require_outside_of_run("load");
  require_no_run_elsewhere(model.strategy(), "load");
  model.require_unchanged();
  if (optimizer != nullptr) {
    require_same_model(model, *optimizer, "load");
    optimizer->poison.require_clean("load");
  }
  const c10::InferenceMode mode(model.is_inference());  // later steps write to the loaded tensors
  const at::NoGradGuard no_grad;
  data::MappedFile file = chiefs_file(model.strategy(), path);
  require_same_load(model.strategy(), file.bytes(), optimizer != nullptr, options);
  load_from_file(open_tensors(std::move(file)), model, optimizer, options);
}

std::map<std::string, at::Tensor> load_tensors(const std::string& path) {
  const SafetensorsFile file = detail::open_tensors(data::MappedFile(path));
  std::map<std::string, at::Tensor> tensors;
  for (const SafetensorsEntry& entry : file.tensors()) tensors.emplace(entry.name, detail::copy_of(file, entry));
  return tensors;
}

std::map<std::string, std::string> load_metadata(const std::string& path) { return SafetensorsFile(path).metadata(); }

}  // namespace lockstep
