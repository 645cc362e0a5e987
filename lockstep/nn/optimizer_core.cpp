#include "lockstep/nn/optimizer_core.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/nn/guards/drift.h"
#include "lockstep/nn/guards/guards.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/shared_memory_reducer.h"
#include "lockstep/nn/step/step_description.h"
#include "lockstep/nn/step/worker_reducer.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/nn/tuned_steps.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/detail/strategy_local.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::detail {

/// Optimizers are numbered, so that workers can identify whose gradients they exchange.
struct OptimizersMade {
  int count = 0;
};

namespace {

std::vector<int> groups_of_parameters(const ModuleCore& module, const std::vector<OptimizerGroup>& groups) {
  std::vector<int> group_of(module.parameters().size(), -1);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const int p : groups[g].parameters) group_of[static_cast<std::size_t>(p)] = static_cast<int>(g);
  }
  return group_of;
}

/// Each replica updates its own segments while others update theirs: two parameters in the same memory would be updated
/// by two replicas at once.
void require_own_memory(const OptimizerCore& core) {
  if (core.module->size() == 1) return;
  struct Place {
    const char* begin;
    const char* end;
    const std::string* name;
  };
  std::vector<Place> places;
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor& leaf = parameters[p].leaves[0];
    // Views with gaps may interleave.
    if (core.group_of[p] < 0 || leaf.numel() == 0 || !leaf.is_non_overlapping_and_dense()) continue;
    const auto* const begin = static_cast<const char*>(leaf.const_data_ptr());
    places.push_back({begin, begin + leaf.nbytes(), &parameters[p].name});
  }
  std::ranges::sort(places, std::less<>(), &Place::begin);
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].begin >= places[i - 1].end) continue;
    throw InvalidArgument(
        errors::kWrongModule,
        {.what = str("parameters '", *places[i - 1].name, "' and '", *places[i].name, "' share memory"),
         .where = "make_optimizer",
         .help =
             "use one tensor in both places: compute with torch::nn::functional::linear(x, encoder->weight), or register "
             "it under a second name with register_parameter(name, encoder->weight)"});
  }
}

/// Cuts the parameters and gives each replica its segments, with its own optimizer over them.
void deal_out(OptimizerCore& core) {
  const auto& parameters = core.module->parameters();
  std::vector<OwnedParameter> to_deal;
  std::vector<int> planned;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (core.group_of[p] < 0) continue;
    to_deal.push_back({parameters[p].leaves[0].numel(), core.is_whole[p]});
    planned.push_back(static_cast<int>(p));
  }
  const OwnerPlan plan = plan_owners(to_deal, static_cast<int>(core.module->size()));
  for (std::size_t r = 0; r < plan.size(); ++r) {
    auto part = std::make_unique<ReplicaPart>();
    part->index = static_cast<int>(r);
    part->progress.failed_runs = core.runs.failed;
    part->shown.gradients.resize(parameters.size());
    part->kinds.assign(parameters.size(), GradientKind::None);
    std::vector<std::vector<at::Tensor>> weights_of_group(core.groups.size());
    for (Segment segment : plan[r]) {
      segment.parameter = planned[static_cast<std::size_t>(segment.parameter)];
      const auto p = static_cast<std::size_t>(segment.parameter);
      // `data` has a separate version counter: each replica marks its own leaves as changed (publish).
      const at::Tensor values = parameters[p].leaves[r].data();
      OwnedSegment owned{.where = segment,
                         .group = static_cast<std::size_t>(core.group_of[p]),
                         .is_whole = core.is_whole[p],
                         .weights = core.is_whole[p] ? values : slice_of(values, segment)};
      weights_of_group[owned.group].push_back(owned.weights);
      part->owned.push_back(std::move(owned));
    }
    OptimizerClass::Groups inner_groups;
    for (std::size_t g = 0; g < core.groups.size(); ++g)
      inner_groups.emplace_back(std::move(weights_of_group[g]), core.groups[g].options->clone());
    part->inner = core.cls.make(inner_groups, *core.groups[0].options);
    core.replicas.push_back(std::move(part));
  }
}

/// Workers that train together must use the same optimizer.
void require_same_optimizers(WorkerGroup& workers, const OptimizerCore& core, const std::string& name) {
  const torch::optim::Optimizer& inner = *core.replicas[0]->inner;
  workers::Texts lines{str("class: ", c10::demangle(typeid(inner).name()))};
  for (const std::string& line : lines_of_settings(core)) lines.push_back(line);
  for (std::size_t p = 0; p < core.group_of.size(); ++p) {
    const int group = core.group_of[p];
    const std::string where = group < 0 ? "in no group" : str("in group ", group);
    lines.push_back(str(core.module->parameters()[p].name, ": ", where));
  }
  workers::require_same(workers, {.what = name, .lines = std::move(lines)}, lockstep::str("make_optimizer: ", name),
                        deadline_of(core.module->strategy().communication()));
}

std::unique_ptr<GradientReducer> make_reducer(const OptimizerCore& core) {
  Strategy& strategy = core.module->strategy();
  WorkerGroup* const workers = StrategyAccess::workers(strategy);
  if (workers == nullptr) return std::make_unique<SharedMemoryReducer>(*core.module, core.group_of, core.replicas);
  const std::string name = str("optimizer ", strategy_local<OptimizersMade>(strategy).count++);
  require_same_optimizers(*workers, core, name);
  return std::make_unique<WorkerReducer>(*workers, *core.module, core.group_of, core.replicas, strategy.communication(),
                                         name);
}

}  // namespace

OptimizerCore::OptimizerCore(std::shared_ptr<ModuleCore> model, std::vector<OptimizerGroup> parameter_groups,
                             const OptimizerClass& optimizer_class)
    : module(std::move(model)),
      cls(optimizer_class),
      groups(std::move(parameter_groups)),
      group_of(groups_of_parameters(*module, groups)),
      runs(StrategyAccess::runs(module->strategy())) {
  module->require_unchanged();
  if (module->is_inference()) {
    throw FailedPrecondition(errors::kWrongModule,
                             {.what = "the model was made in inference mode, and its weights cannot be trained",
                              .where = "make_optimizer",
                              .help = "call strategy.make outside of any c10::InferenceMode"});
  }
  require_own_memory(*this);
  require_valid_options(*this);
  for (const auto& parameter : module->parameters()) {
    const at::Tensor& leaf = parameter.leaves[0];
    is_whole.push_back(!cls.is_elementwise || !leaf.is_non_overlapping_and_dense());
    blocks.first.push_back(blocks.sums.size());
    const std::int64_t count = std::max<std::int64_t>(1, (leaf.numel() + kShardBlock - 1) / kShardBlock);
    blocks.sums.resize(blocks.sums.size() + static_cast<std::size_t>(count));
  }
  deal_out(*this);
  const bool on_device = module->strategy().replica_context(0).device().is_cuda() && !module->copies().is_mixed;
  updater = on_device ? make_device_updater(*this) : make_host_updater(*this);
  reducer = make_reducer(*this);
  for (std::size_t p = 0; p < group_of.size(); ++p) {
    if (group_of[p] >= 0) module->pin(p);
  }
  observers.drift = make_drift(*this);
  observers.all = {make_changed_module(*this),      make_changed_gradients(*this), make_unfit_losses(*this),
                   make_leftover_gradients(*this),  make_different_sizes(*this),   make_unused_settings(*this),
                   make_unreached_parameters(*this)};
  if (is_being_tuned()) observers.all.push_back(make_tuned_steps());
}

namespace {

/// By whole components of a name: "fc1" matches "fc1.weight", not "fc10.weight".
bool begins_with(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return false;
  return prefix.empty() || prefix.ends_with('.') || name.size() == prefix.size() || name[prefix.size()] == '.';
}

}  // namespace

std::vector<OptimizerGroup> assign_groups(const ModuleCore& module, std::vector<GroupRecipe> recipes) {
  std::vector<OptimizerGroup> groups;
  for (auto& recipe : recipes) groups.push_back({{}, std::move(recipe.options)});
  const auto& parameters = module.parameters();
  std::unordered_map<const void*, std::vector<std::string>> names_of;  // a tied parameter has several
  for (const auto& item : module.named_parameters()) names_of[item.value().unsafeGetTensorImpl()].push_back(item.key());
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto& own_names = names_of[parameters[p].leaves[0].unsafeGetTensorImpl()];
    const auto takes = [&](const GroupRecipe& recipe) {
      return std::ranges::any_of(recipe.prefixes, [&](const std::string& prefix) {
        return std::ranges::any_of(own_names, [&](const std::string& name) { return begins_with(name, prefix); });
      });
    };
    const auto first = std::find_if(recipes.begin(), recipes.end(), takes);
    if (first != recipes.end())
      groups[static_cast<std::size_t>(first - recipes.begin())].parameters.push_back(static_cast<int>(p));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].parameters.empty()) continue;
    std::string names;
    for (const auto& parameter : parameters) names += " " + parameter.name;
    throw InvalidArgument(
        errors::kOptimizer,
        {.what = str("parameter group ", g, " holds no parameter"),
         .where = "make_optimizer",
         .seen = parameters.empty() ? "the model has no parameters" : "the model has" + names,
         .help =
             "give whole parts that a name begins with, such as 'head' for 'head.weight'; the first group that fits takes a parameter"});
  }
  return groups;
}

ReplicaPart& part_here(OptimizerCore& core, const char* operation) {
  const ContextEntry* top = current_context();
  if (top == nullptr || top->replica == nullptr) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(operation, " belongs inside the function given to strategy.run"),
                              .help = "call it once per replica and step, inside run"});
  }
  if (!core.module->is_of(top->strategy)) require_current_strategy(core.module->strategy(), operation);
  if (core.poison.is_set() || core.module->is_torn()) core.poison.require_whole_weights(operation);
  return *core.replicas[static_cast<std::size_t>(top->replica->local_index())];
}

void require_valid_options(const OptimizerCore& core) {
  for (std::size_t g = 0; g < core.groups.size(); ++g) require_valid_options(g, *core.groups[g].options);
}

void follow_options(const OptimizerCore& core, ReplicaPart& mine) {
  for (std::size_t g = 0; g < core.groups.size(); ++g) {
    auto& inner = mine.inner->param_groups()[g];
    const torch::optim::OptimizerOptions& wanted = *core.groups[g].options;
    if (mine.has_checked_state && core.cls.are_same(inner.options(), wanted)) continue;
    require_valid_options(g, wanted);
    if (!mine.has_checked_state || optional_state(inner.options()) != optional_state(wanted))
      require_state_for_options(core, mine, g);
    inner.set_options(wanted.clone());
  }
  mine.has_checked_state = true;
}

}  // namespace lockstep::detail
