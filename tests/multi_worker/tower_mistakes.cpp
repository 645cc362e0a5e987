#include "tests/multi_worker/tower_mistakes.h"

#include <torch/types.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;
namespace contrib = lockstep::contrib;

/// The last tower's values have another shape: its worker, or all, must not continue as if they had been summed.
void reduce_unequally(contrib::MirroredStrategy& strategy) {
  const auto values = [&](bool differ) {
    return strategy.call_for_each_tower([&, differ] {
      const bool is_last = contrib::get_tower_context().tower_id() == strategy.num_towers() - 1;
      return torch::ones({differ && is_last ? 3 : 2});
    });
  };
  const auto bad = values(true);
  const auto good = values(false);
  for (const auto* each : {&bad, &good}) {
    try {
      const auto sum = strategy.reduce(contrib::VariableAggregation::SUM, *each, "cpu:0");
      std::printf("summed %d\n", sum.item<int>());
    } catch (const ls::Error& e) {
      std::printf("refused L%d\n", e.number());
    } catch (const std::exception& e) {
      std::printf("summed %s\n", e.what());
    }
  }
}

/// Collective calls in functions that only the owner of an item calls.
void call_all_from_one(contrib::MirroredStrategy& strategy) {
  auto variable = strategy.core().make_variable(torch::zeros({}), {.aggregation = ls::Aggregation::Sum});
  const std::vector<int> items{1, 2, 3, 4};
  const auto refused = [](const char* what, const auto& call) {
    try {
      call();
      std::printf("accepted %s\n", what);
    } catch (const ls::Error& e) {
      const std::string text = e.what();
      const bool is_named = text.find("inside the function given to map") != text.npos;
      std::printf("%s %s\n", is_named ? "refused" : "failed otherwise", what);
    }
  };
  refused("a write", [&] {
    strategy.map(items, [&](int i) {
      variable.assign_add(torch::tensor(static_cast<float>(i)));
      return i;
    });
  });
  refused("a read of all", [&] {
    const auto each = strategy.call_for_each_tower([] { return torch::ones({}); });
    strategy.map(items, [&](int) { return strategy.unwrap(each)[0]; });
  });
}

/// The second worker makes two calls of one kind in a different order than the first.
void swap_calls(contrib::MirroredStrategy& strategy, const std::string& kind) {
  const auto variable = strategy.core().make_variable(torch::zeros({2}));
  const auto each = strategy.call_for_each_tower([] { return torch::ones({2}); });
  const std::vector<int> items{1, 2, 3};
  const auto call = [&](const auto& first, const auto& second) {
    const bool is_other = strategy.core().worker_id() == 1;
    is_other ? void(second()) : void(first());
    is_other ? void(first()) : void(second());
  };
  auto t = strategy.core().make_variable(torch::zeros({}), {.name = "t", .aggregation = ls::Aggregation::Sum});
  auto u = strategy.core().make_variable(torch::zeros({}), {.name = "u", .aggregation = ls::Aggregation::Sum});
  const auto in_towers = [&](const auto& first, const auto& second) {
    strategy.call_for_each_tower([&] { call(first, second); });
  };
  if (kind == "assign")
    in_towers([&] { return t.assign_add(torch::ones({})); }, [&] { return u.assign_add(torch::ones({})); });
  if (kind == "merge_call") {
    in_towers([] { contrib::get_tower_context().merge_call([](contrib::DistributionStrategy&) { return 1; }); },
              [] { contrib::get_tower_context().merge_call([](contrib::DistributionStrategy&) { return 2; }); });
  }
  if (kind == "call_for_each_tower")
    call([&] { return strategy.call_for_each_tower([] { return 1; }); },
         [&] { return strategy.call_for_each_tower([] { return 2; }); });
  if (kind == "slice") {
    auto rows = strategy.core().make_variable(torch::zeros({4}), {.name = "rows", .aggregation = ls::Aggregation::Sum});
    strategy.call_for_each_tower([&] { rows[contrib::get_tower_context().tower_id()].assign_add(torch::ones({})); });
  }
  if (kind == "aggregation") {
    const bool is_other = strategy.core().worker_id() == 1;
    strategy.reduce(is_other ? contrib::VariableAggregation::MEAN : contrib::VariableAggregation::SUM,
                    strategy.worker_device_index());
  }
  if (kind == "output") {
    auto iterator = strategy.distribute_dataset([] { return ls::data::range(4); }).make_one_shot_iterator();
    const auto step = [&](contrib::MultiStepContext& ctx, const contrib::PerDevice<torch::Tensor>& x) {
      call([&] { ctx.set_last_step_output("a", x, contrib::VariableAggregation::SUM); },
           [&] { ctx.set_last_step_output("b", x, contrib::VariableAggregation::SUM); });
    };
    strategy.run_steps_on_dataset(step, iterator);
  }
  if (kind == "unwrap") call([&] { return strategy.unwrap(each); }, [&] { return strategy.unwrap(each); });
  if (kind == "reduce")
    call([&] { return strategy.reduce(contrib::VariableAggregation::SUM, each); },
         [&] { return strategy.reduce(contrib::VariableAggregation::SUM, each); });
  if (kind == "map")
    call([&] { return strategy.map(items, [](int i) { return i; }); },
         [&] { return strategy.map(items, [](int i) { return i + 1; }); });
  if (kind == "update")
    call([&] { return strategy.update(variable, [](const torch::Tensor& v) { v.add_(1); }); },
         [&] { return strategy.update(variable, [](const torch::Tensor& v) { v.mul_(3); }); });
  if (kind == "update_non_slot")
    call([&] { return strategy.update_non_slot(strategy.worker_devices(), [] { return 1; }); },
         [&] { return strategy.update_non_slot(strategy.worker_devices(), [] { return 2; }); });
}

}  // namespace

void make_mistake(contrib::MirroredStrategy& strategy, const std::string& name) {
  if (name == "unequal")
    reduce_unequally(strategy);
  else if (name == "owners")
    call_all_from_one(strategy);
  else
    swap_calls(strategy, name);
}
