// A client in the style of TensorFlow 1.11 on all workers of a cluster: `tower_program TOWERS_PER_WORKER [MISTAKE]`.
// The cluster comes from TF_CONFIG; without it, it is one worker. Prints everything that the program sees, which must
// be the same for every W x R and on every worker; with a MISTAKE only its outcome.

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/cluster.h"
#include "lockstep/contrib.h"
#include "lockstep/lockstep.h"
#include "tests/multi_worker/tower_mistakes.h"

namespace ls = lockstep;
namespace contrib = lockstep::contrib;
using Agg = contrib::VariableAggregation;

namespace {

void say(const char* name, const torch::Tensor& value) {
  std::printf("saw %s", name);
  const auto flat = value.detach().to(torch::kDouble).flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i) std::printf(" %a", flat[i].item<double>());
  std::printf("\n");
}
void say(const char* name, const std::vector<torch::Tensor>& values) {
  for (const auto& value : values) say(name, value);
}
void say(const char* name, const std::vector<int>& values) {
  std::printf("saw %s", name);
  for (const int value : values) std::printf(" %d", value);
  std::printf("\n");
}

torch::Tensor number(double value) { return torch::full({}, value); }

/// All workers reject results that cannot be combined: towers, and items of map, with different structures.
void require_one_structure(contrib::MirroredStrategy& strategy) {
  if (strategy.core().num_workers() == 1) return;
  const auto list_of = [](int n) { return std::vector<torch::Tensor>(static_cast<std::size_t>(n), number(n)); };
  const auto lists =
      strategy.call_for_each_tower([&] { return list_of(contrib::get_tower_context().tower_id() == 1 ? 2 : 1); });
  const auto named = strategy.call_for_each_tower([&] {
    return std::map<std::string, torch::Tensor>{{contrib::get_tower_context().tower_id() == 0 ? "a" : "b", number(1)}};
  });
  const auto mapped = strategy.map(std::vector<int>{1, 1, 1, 1, 1, 1, 2}, list_of);
  const auto of_one_worker = strategy.map(std::vector<int>{1}, list_of);
  const std::function<void()> calls[] = {[&] { strategy.unwrap(lists); }, [&] { strategy.unwrap(named); },
                                         [&] { strategy.unwrap(mapped); }, [&] { strategy.unwrap(of_one_worker); }};
  for (std::size_t i = 0; i < std::size(calls); ++i) {
    int thrown = 0;
    try {
      calls[i]();
    } catch (const ls::Error& error) {
      thrown = error.number();
    }
    if (thrown != ls::errors::kStructure) throw std::runtime_error("structures of case " + std::to_string(i));
  }
}

void look_at_values(contrib::MirroredStrategy& strategy) {
  const auto records = strategy.call_for_each_tower([] { return std::string("\x08\0\x01", 3); });
  for (const std::string& record : strategy.unwrap(records))
    say("length of a record", std::vector<int>{static_cast<int>(record.size())});
  for (const std::string& text : strategy.unwrap(strategy.call_for_each_tower([] { return "literal"; })))
    std::printf("saw a %s\n", text.c_str());
  for (const int items : {1, 8}) {
    std::vector<int> lengths;
    for (int i = 0; i < items; ++i) lengths.push_back(i);
    const auto texts =
        strategy.map(lengths, [](int length) { return std::string(static_cast<std::size_t>(length), 'x'); });
    for (const auto& output : strategy.unwrap(texts))
      for (const std::string& text : output.get()) std::printf("saw text %s\n", text.c_str());
  }
  say("towers", std::vector<int>{strategy.num_towers(), static_cast<int>(strategy.worker_devices().size())});
  say("indices", strategy.unwrap(strategy.worker_device_index()));
  const auto random = strategy.call_for_each_tower([] { return torch::rand({3}); });
  say("random", strategy.unwrap(random));
  say("sum", strategy.reduce(Agg::SUM, random, "cpu:0"));
  say("mean", strategy.reduce(Agg::MEAN, random, strategy.worker_devices().back()));
  say("first", strategy.unwrap(strategy.reduce(Agg::ONLY_FIRST_TOWER, random, random)));
  say("batch", strategy.batch_reduce(Agg::SUM, {{random, random}, {random, "cpu:0"}})[1][0]);
  const auto& devices = strategy.worker_devices();
  const auto of_others = strategy.batch_reduce(Agg::SUM, {{random, devices.front()}, {random, devices.back()}});
  say("on devices of others", {of_others[0][0], of_others[1][0]});
  say("on all devices by name", strategy.unwrap(strategy.reduce(Agg::MEAN, random, devices)));
  say("broadcast by name", strategy.unwrap(strategy.broadcast(number(4), devices)));
  say("shapes differ", strategy.unwrap(strategy.call_for_each_tower(
                           [] { return torch::ones({contrib::get_tower_context().tower_id()}); })));
  const auto pairs = strategy.unwrap(strategy.call_for_each_tower([] {
    return std::pair{contrib::get_tower_context().tower_id(), torch::rand({2})};
  }));
  for (const auto& [id, value] : pairs) say(std::to_string(id).c_str(), value);

  const auto merge = [](contrib::DistributionStrategy& s, const contrib::PerDevice<int>& all) {
    int sum = 0;
    for (const int one : s.unwrap(all)) sum += one;
    return sum;
  };
  say("merged", strategy.unwrap(strategy.call_for_each_tower(
                    [&] {
                      const int mine = 3 + contrib::get_tower_context().tower_id();
                      return contrib::get_tower_context().merge_call(merge, mine) + mine;
                    },
                    contrib::run_in_turn)));

  const auto rows = strategy.call_for_each_tower([] {
    const int tower = contrib::get_tower_context().tower_id();
    return ls::IndexedSlices{torch::rand({1 + tower, 2}), torch::full({1 + tower}, tower), {9, 2}};
  });
  for (const auto& of_tower : strategy.unwrap(strategy.call_for_each_tower(
           [](ls::IndexedSlices mine) {
             mine.dense_shape[0] += contrib::get_tower_context().tower_id();
             return mine;
           },
           rows))) {
    say("rows", std::vector<torch::Tensor>{of_tower.values, of_tower.indices});
    say("of", std::vector<int>(of_tower.dense_shape.begin(), of_tower.dense_shape.end()));
  }
  for (const auto aggregation : {Agg::SUM, Agg::MEAN, Agg::ONLY_FIRST_TOWER}) {
    const ls::IndexedSlices all = strategy.reduce(aggregation, rows, "cpu:0");
    say("rows of all", std::vector<torch::Tensor>{all.values, all.indices});
  }
  const auto twice = strategy.update_non_slot(
      {devices.back(), devices.front()}, [](const torch::Tensor& x) { return x * 2; }, number(3));
  say("on two devices", {twice[0], twice[1]});
  require_one_structure(strategy);

  for (const int items : {10, 2, 1}) {
    std::vector<torch::Tensor> numbers;
    for (int i = 0; i < items; ++i) numbers.push_back(number(0.1 * i));
    const auto products = strategy.map(
        numbers, [](const torch::Tensor& x, const torch::Tensor& y) { return x * y; }, strategy.broadcast(number(2)));
    for (const auto& output : strategy.unwrap(products)) say("mapped", output.get());
    const auto pairs_of_map = strategy.map(numbers, [](const torch::Tensor& x) { return std::pair{x, 2.5}; });
    for (const auto& output : strategy.unwrap(pairs_of_map))
      for (const auto& [x, y] : output.get()) say("mapped pair", {x, number(y)});
    say("map everywhere", strategy.unwrap(strategy.reduce(Agg::SUM, products)));
    say("sum of map", strategy.reduce(Agg::SUM, products, "cpu:0"));
    say("mean of map", strategy.reduce(Agg::MEAN, products, "cpu:0"));
  }
}

/// A mirrored value is on its devices, however many of them a worker has.
void look_at_devices(contrib::MirroredStrategy& strategy) {
  const auto& devices = strategy.worker_devices();
  auto ids = strategy.tower_local_variable(number(0), Agg::SUM, "ids");
  strategy.call_for_each_tower([&] { ids.assign(contrib::get_tower_context().tower_id()); });
  const auto copy = [](const torch::Tensor& x) { return x * 1; };
  const auto by_tower = strategy.update(ids, copy);
  say("of the first tower", {by_tower.get(), contrib::TowerValue(by_tower).tensor()});
  say("of the first device", strategy.update_non_slot(devices, copy, by_tower).get() + 1);
  for (const std::size_t count : {1, 2, 3, 6}) {
    const ls::Devices some(devices.rbegin(), devices.rbegin() + static_cast<std::ptrdiff_t>(count));
    say("sum on some", strategy.unwrap(strategy.reduce(Agg::SUM, ids, some)));
    say("broadcast where it is", strategy.unwrap(strategy.broadcast(number(7), strategy.reduce(Agg::SUM, ids, some))));
    const auto updated = strategy.update_non_slot(some, copy, by_tower);
    say("first of the list", updated[0]);
    say("in order", strategy.unwrap(updated));
    say("as a list", strategy.update_non_slot(some, copy, by_tower, contrib::ungrouped));
    say("as one value", strategy.unwrap(contrib::TowerValue(updated)));
    say("once more", strategy.update_non_slot(some, copy, updated, contrib::ungrouped));
  }
  // Every worker rejects an operation that one of them cannot do.
  const auto on_first = strategy.broadcast(number(1), {devices[0], devices[1], devices[2]});
  const auto nothing = [](const auto&...) {};
  // One value per tower does not convert to one, even if this worker has one tower.
  const auto towers = strategy.call_for_each_tower([] { return number(contrib::get_tower_context().tower_id()); });
  auto iterator = strategy.distribute_dataset([] { return ls::data::range(6); }).make_one_shot_iterator();
  const auto rows = strategy.run_steps_on_dataset(
      [](contrib::MultiStepContext& ctx, const contrib::PerDevice<torch::Tensor>& row) {
        ctx.set_last_step_output("row", row);
      },
      iterator);
  const auto use = [](const torch::Tensor&) {};
  // A variable gets the components of a mirrored value by their devices.
  auto placed = [&] {
    const auto scope = strategy.scope();
    return ls::Variable(number(0), {.name = "placed"});
  }();
  placed.assign(strategy.update_non_slot(ls::Devices(devices.rbegin(), devices.rend()), copy, by_tower));
  say("by device", strategy.unwrap(placed));
  const std::function<void()> refused[] = {[&] { use(towers); },
                                           [&] { use(towers + 1); },
                                           [&] { (void)std::abs(strategy.worker_device_index()); },
                                           [&] { strategy.broadcast(towers); },
                                           [&] { strategy.broadcast(contrib::TowerValue(ids)); },
                                           [&] { use(rows.last_step_outputs().at("row")); },
                                           [&] { strategy.broadcast(number(1), "/device:GPU:99"); },
                                           [&] { strategy.update(ids, nothing, on_first); },
                                           [&] { placed.assign(on_first); },
                                           [&] { ids.assign(on_first); },
                                           [&] { strategy.call_for_each_tower(nothing, on_first); },
                                           [&] {
                                             strategy.update_non_slot({devices[0], devices[5]}, nothing, on_first);
                                           }};
  for (std::size_t i = 0; i < std::size(refused); ++i) {
    try {
      refused[i]();
    } catch (const ls::InvalidArgument&) {
      continue;
    }
    throw std::runtime_error("not refused: case " + std::to_string(i));
  }
  say("as a list of all", strategy.update(ids, copy, contrib::ungrouped));
  const auto added = strategy.update(
      placed, [](const torch::Tensor& w, const torch::Tensor& x) { return w + x; }, by_tower);
  say("of differing values", {added.get(), strategy.broadcast(added).get()});
  const auto mapped = strategy.map(std::vector<int>{1, 2, 3, 4, 5, 6, 7}, [](int i) { return number(i); });
  say("items of each tower",
      strategy.unwrap(strategy.call_for_each_tower(
          [](const contrib::TowerValue& mine) { return static_cast<int>(mine.local_values().size()); },
          contrib::TowerValue(mapped))));
  say("in structures",
      strategy.update(
          placed, [](const torch::Tensor& w, const auto& in) { return w + in.first + in.second; },
          std::pair{strategy.broadcast(number(2)), contrib::TowerValue(number(1))}, contrib::ungrouped));
  say("of variables",
      strategy.reduce(Agg::SUM, strategy.map(
                                    std::vector<int>{0, 1, 2, 3, 4, 5},
                                    [](int i, const torch::Tensor& w) { return w * (i + 1); }, placed)));
  // A function that fails for one tower fails on all workers, and the program continues.
  const auto fails = [](int item) {
    if (item == 4) throw std::runtime_error("item 4");
    return number(item);
  };
  const std::function<void()> failing[] = {
      [&] {
        strategy.map(std::vector<int>{0, 1, 2, 3, 4, 5}, fails);
      },
      [&] { strategy.update_non_slot({devices[4]}, [&] { fails(4); }); },
      [&] { strategy.update_non_slot({devices[4]}, [&] { return fails(4); }); },
      [&] { strategy.update(ids, [&](const torch::Tensor& id) { fails(id.item<int>()); }); }};
  for (std::size_t i = 0; i < std::size(failing); ++i) {
    try {
      failing[i]();
    } catch (const std::exception& error) {
      if (std::string(error.what()).find("item 4") != std::string::npos) continue;
      throw;
    }
    throw std::runtime_error("did not fail: case " + std::to_string(i));
  }
  auto before = strategy.unwrap(placed);
  placed.assign(number(8));
  say("as it was", before);
  const ls::Variable plain(number(3), {.name = "plain"});
  say("not distributed", strategy.update(plain, copy, contrib::ungrouped));
  iterator = strategy.distribute_dataset([] { return ls::data::range(24); }).make_one_shot_iterator();
  const auto outputs = strategy.run_steps_on_dataset(
      [&](contrib::MultiStepContext& ctx, const contrib::PerDevice<torch::Tensor>& x) {
        ctx.set_last_step_output("all", strategy.reduce(Agg::SUM, x));
        ctx.set_last_step_output("one", strategy.reduce(Agg::SUM, x, {"cpu:0"}));
        ctx.set_last_step_output("two", strategy.reduce(Agg::SUM, x, {devices[0], devices[5]}));
        ctx.set_last_step_output("plain", strategy.reduce(Agg::SUM, x, "cpu:0"));
        ctx.set_last_step_output("by tower", by_tower);
      },
      iterator, 2, std::vector<torch::Tensor>(16, number(0)));
  for (const auto& [name, output] : outputs.last_step_outputs()) {
    say(name.c_str(), output.values());
    say("unwrapped", strategy.unwrap(output));
    say("where it is", strategy.unwrap(strategy.broadcast(number(1), output)));
    const auto inside = [](const contrib::TowerValue& mine) { return mine.tensor() * 1; };
    try {
      say("inside", strategy.unwrap(strategy.call_for_each_tower(inside, output)));
    } catch (const ls::InvalidArgument&) {
      std::printf("saw that %s is not on the devices of all towers\n", name.c_str());
    }
  }
}

/// The client gets copies of components, whether this worker's or another's.
void look_at_copies(contrib::MirroredStrategy& strategy) {
  const ls::Variable plain(number(3), {.name = "alone"});
  const auto scope = strategy.scope();
  ls::Variable v(number(1), {.name = "changing"});
  auto local = strategy.tower_local_variable(number(1), Agg::SUM, "changing here");
  const auto itself = [](const torch::Tensor& w) { return w; };
  const auto with_a_number = [](const torch::Tensor& w) { return std::pair{w, 1}; };
  const auto on_devices = strategy.update_non_slot(strategy.worker_devices(), itself, v);
  const auto pairs = strategy.update(local, with_a_number);
  const auto of_towers = strategy.unwrap(strategy.call_for_each_tower([&] { return local.read(); }));
  const auto of_map = strategy.unwrap(contrib::TowerValue(strategy.map(
      std::vector<int>{1, 2}, [](int, const torch::Tensor& w) { return w; }, v)));
  v.assign(50);
  strategy.call_for_each_tower([&] { local.assign(100); });
  say("before it changed", strategy.unwrap(on_devices));
  for (const auto& [w, n] : strategy.unwrap(pairs)) say("in a pair", w + n);
  say("of towers", of_towers);
  say("of map", of_map);

  const auto ids = strategy.worker_device_index();
  say("where a plain variable is", strategy.unwrap(strategy.reduce(Agg::SUM, contrib::TowerValue(ids), plain)));
  const contrib::TowerValue mapped = strategy.map(std::vector<int>{1, 2}, [](int i) { return number(i); });
  say("where results of map are", strategy.unwrap(strategy.reduce(Agg::SUM, mapped, mapped)));
  for (const auto large : strategy.unwrap(strategy.call_for_each_tower([] { return std::uint64_t{1} << 63 | 5; })))
    std::printf("saw the large number %llu\n", static_cast<unsigned long long>(large));

  if (strategy.core().num_workers() == 1) return;
  try {  // only some workers have an item
    strategy.map(std::vector<int>{1, 2, 3}, [](int) { return ls::Variable(number(1)).read(); });
  } catch (const ls::Error& error) {
    if (error.number() == ls::errors::kWrongContext || error.number() == ls::errors::kPeerFailed) return;
    throw;
  }
  throw std::runtime_error("a variable of map");
}

/// Functions draw the same numbers wherever they are called.
void look_at_random_numbers(contrib::MirroredStrategy& strategy) {
  const auto scope = strategy.scope();
  const auto draw = [](const auto&...) { return torch::rand({}); };
  say("of map", strategy.unwrap(contrib::TowerValue(strategy.map(std::vector<int>(8), draw))));
  const ls::Variable v(number(0), {.name = "drawn"});
  auto local = strategy.tower_local_variable(number(0), Agg::SUM, "drawn here");
  for (int i = 0; i < 2; ++i) {
    say("of update", strategy.update(v, draw, contrib::ungrouped));
    say("of update of towers", strategy.update(local, draw, contrib::ungrouped));
    say("of devices", strategy.update_non_slot({strategy.worker_devices()[4]}, draw, contrib::ungrouped));
    say("of merges", strategy.unwrap(strategy.call_for_each_tower([&] {
      const auto own = torch::rand({});
      return contrib::get_tower_context().merge_call([&](contrib::DistributionStrategy&) { return draw(); }) +
             torch::rand({}) + own;
    })));
  }
}

/// If towers do not merge alike, every worker ends with that error. The job is over then.
void merge_unequally(contrib::MirroredStrategy& strategy) {
  const auto merge = [] { contrib::get_tower_context().merge_call([](contrib::DistributionStrategy&) {}); };
  const auto refused = [&](const std::function<bool()>& merges) {
    try {
      strategy.call_for_each_tower([&] {
        if (merges()) merge();
      });
    } catch (const ls::Error& error) {
      if (std::string(error.what()).find("made a different number of merge_call") != std::string::npos) return;
      throw;
    }
    throw std::runtime_error("unequal merge calls");
  };
  if (strategy.core().num_workers() > 1) refused([&] { return strategy.core().worker_id() == 0; });
  refused([] { return contrib::get_tower_context().tower_id() == 0; });
  std::printf("saw the end\n");
}

void look_at_variables(contrib::MirroredStrategy& strategy) {
  const auto scope = strategy.scope();
  ls::Variable v(number(1), {.name = "v", .aggregation = Agg::MEAN});
  strategy.call_for_each_tower([&] { v.assign(torch::rand({})); });
  strategy.update(
      v, [](torch::Tensor w, const torch::Tensor& x) { return w.add_(x); }, strategy.broadcast(number(2)));
  say("v", strategy.unwrap(v));
  for (int i = 1; i < 40; ++i) {  // summed over six towers and divided, some of these numbers would be rounded
    strategy.call_for_each_tower([&] { v.assign(0.1 * i); });
    if (v.read().item<float>() != static_cast<float>(0.1 * i)) throw std::runtime_error("the mean of a number");
  }
  say("numbers", strategy.unwrap(v));
  // The mean of equal values is the value, whether towers return one tensor or separate ones.
  const torch::Tensor table = torch::arange(1, 41, torch::kFloat).view({20, 2}) * 0.1;
  ls::Variable mean(torch::zeros({20, 2}), {.name = "mean", .aggregation = Agg::MEAN});
  ls::Variable rows(torch::zeros({20, 2}), {.name = "rows", .aggregation = Agg::MEAN});
  const ls::IndexedSlices all_rows{table, torch::arange(20), {}};
  const auto given = strategy.call_for_each_tower([&] {
    mean.assign(table);
    mean.assign_add(table * 1);
    rows.scatter_add(all_rows);
    rows.scatter_sub({table * 2, torch::arange(20), {}});
    return table;
  });
  if (!torch::equal(mean.read(), table + table)) throw std::runtime_error("the mean of a tensor");
  if (!torch::equal(rows.read(), -table)) throw std::runtime_error("the mean of rows");
  say("mean of what all gave", strategy.reduce(Agg::MEAN, given, "cpu:0"));
  // A variable returned by towers is the variable.
  const auto returned = strategy.call_for_each_tower([&] { return v; });
  strategy.update(
      returned, [](torch::Tensor w, const torch::Tensor& x) { w.add_(x); }, returned);
  say("returned", strategy.unwrap(returned));
  say("its value", strategy.read_var(returned));
  const auto [one, number_of_it] = strategy.call_for_each_tower([&] {
    return std::pair{v, contrib::get_tower_context().tower_id()};
  });
  say("where it is", strategy.unwrap(strategy.broadcast(one, one)));
  say("in a pair", strategy.unwrap(strategy.call_for_each_tower(
                       [](const ls::Variable& w, int id) { return w.read() + id; }, one, number_of_it)));
  ls::Variable first(torch::zeros({3}), {.name = "first", .aggregation = Agg::ONLY_FIRST_TOWER});
  strategy.call_for_each_tower([&] {
    const int tower = contrib::get_tower_context().tower_id();
    first.assign(torch::full({3}, 3.0 + tower));
    first.assign_add(torch::rand({3}));
    first.scatter_add({torch::ones({1 + tower}), torch::zeros({1 + tower}, torch::kLong)});
  });
  say("first", strategy.unwrap(first));
  int updates = 0;
  strategy.update_non_slot(strategy.non_slot_devices({v}), [&] { ++updates; });
  if (updates != strategy.core().num_local_replicas()) throw std::runtime_error("update_non_slot");
  for (const auto aggregation : {Agg::NONE, Agg::SUM, Agg::MEAN, Agg::ONLY_FIRST_TOWER}) {
    auto local = strategy.tower_local_variable(number(0), aggregation, "local");
    strategy.call_for_each_tower([&] { local.assign_add(1.5 + contrib::get_tower_context().tower_id()); });
    say("local", strategy.read_var(local));
    say("local as a variable", strategy.read_var(static_cast<const ls::Variable&>(local)));
    say("locals", strategy.unwrap(local));
    say("assigned", local.assign(6));
  }
}

struct Net : torch::nn::Module {
  Net() { register_module("layers", layers); }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{torch::nn::Linear(5, 8), torch::nn::Dropout(0.5), torch::nn::Linear(8, 1)};
};

/// Towers have separate statistics. Outside of towers they can be used once all towers have the same.
void look_at_buffers(contrib::MirroredStrategy& strategy) {
  auto model =
      strategy.core().make([] { return torch::nn::Sequential(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1)); });
  const auto predict = [&] { return model->forward(torch::ones({2, 3})); };
  strategy.call_for_each_tower([&] { model->forward(torch::rand({4, 3})); });
  const bool has_several = strategy.core().num_workers() > 1;
  const auto clear = [](torch::nn::SequentialImpl& net) { net.parameters()[0].zero_(); };
  const std::function<void()> refused[] = {[&] { predict(); }, [&] { model.update(clear); }};
  for (const auto& use : refused) {
    bool is_refused = false;
    try {
      if (has_several) use();
    } catch (const ls::Error& error) {
      is_refused = std::string(error.what()).find("synchronize_buffers") != std::string::npos;
    }
    if (is_refused != has_several) throw std::runtime_error("buffers of this worker");
  }
  say("weights", model.parameters());
  strategy.call_for_each_tower([&] { model.update(clear); });
  model.synchronize_buffers();
  model.update([](torch::nn::SequentialImpl& net) { net.buffers()[0].fill_(std::nan("")); });
  model.update([](torch::nn::SequentialImpl& net) { net.buffers()[0].fill_(0.5); });
  model.eval();
  say("predicted", predict());
}

void train(contrib::MirroredStrategy& strategy) {
  auto model = strategy.core().make<Net>();
  auto optimizer = strategy.core().make_optimizer<torch::optim::SGD>(model, 0.05);
  const auto x = torch::arange(500, torch::kFloat).view({100, 5}).sin(), y = x.sum(1, true);
  // 34 elements, the last of one row: with 6 towers 5 whole steps.
  const auto dataset = strategy.distribute_dataset([&] {
    return ls::data::from_tensor_slices(std::pair{x, y}).shuffle(50, {.seed = 4}).batch(3);
  });
  auto iterator = dataset.make_initializable_iterator();
  const auto step = [&](contrib::MultiStepContext& ctx, const contrib::PerDevice<torch::Tensor>& inputs,
                        const contrib::PerDevice<torch::Tensor>& labels) {
    const auto losses = strategy.call_for_each_tower(
        [&](const torch::Tensor& in, const torch::Tensor& label) {
          const auto loss = torch::nn::functional::mse_loss(model->forward(in), label);
          contrib::minimize(optimizer, loss, contrib::LossReduction::MEAN);
          ctx.set_last_step_output("mean", loss.detach(), Agg::MEAN);
          ctx.set_non_tensor_output("name", contrib::get_tower_context().tower_id() < 2 ? "low" : "high");
          ctx.set_non_tensor_output("id", contrib::get_tower_context().tower_id());
          return loss.detach();
        },
        inputs, labels);
    ctx.set_last_step_output("each", losses);
    ctx.set_last_step_output("inputs", inputs, Agg::SUM);
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    iterator.initialize();
    auto ctx = strategy.run_steps_on_dataset(step, iterator, 2);
    const contrib::TowerValue each = ctx.last_step_outputs().at("each");
    say("outputs given back", strategy.unwrap(strategy.call_for_each_tower(
                                  [](const contrib::TowerValue& mine) { return mine.tensor() * 2; }, each)));
    say("their sum", strategy.reduce(Agg::SUM, each, "cpu:0"));
    say("their batch", strategy.batch_reduce(Agg::MEAN, {{each, each}})[0][0]);
    const auto again = strategy.run_steps_on_dataset(
        [&](contrib::MultiStepContext& next, const contrib::PerDevice<torch::Tensor>&,
            const contrib::PerDevice<torch::Tensor>&) {
          next.set_last_step_output("again", each);
          next.set_last_step_output("sum", each, Agg::SUM);
        },
        iterator);
    for (const auto& [name, output] : again.last_step_outputs()) say(name.c_str(), output.values());
    for (int more = 0; more < 2; ++more) {
      for (const auto& [name, output] : ctx.last_step_outputs()) say(name.c_str(), output.values());
      for (const auto& name : std::any_cast<std::vector<std::string>>(ctx.non_tensor_outputs().at("name")))
        std::printf("saw %s\n", name.c_str());
      say("ids", std::any_cast<std::vector<int>>(ctx.non_tensor_outputs().at("id")));
      if (more == 0) ctx.run_op();
    }
    int left = 0;
    try {
      for (;; ++left) iterator.get_next();
    } catch (const ls::OutOfRange&) {
      say("left", std::vector<int>{left});
    }
  }
  for (const auto& parameter : model.replica(0)->parameters()) say("weights", parameter);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto devices = ls::cpus(argc > 1 ? std::atoi(argv[1]) : 2);
    const ls::TFConfigClusterResolver environment;
    const ls::ClusterSpec cluster = environment.cluster_spec();
    torch::manual_seed(11 + environment.task_id().value_or(0));  // the first worker's counts
    contrib::MirroredOptions options{.intra_op_threads = 1, .seed = 5};
    if (cluster.empty()) options.devices = devices;
    contrib::MirroredStrategy strategy(options);
    if (!cluster.empty()) strategy.configure({.cluster_spec = cluster, .devices = devices, .join_seconds = 60});
    if (strategy.should_checkpoint() != (strategy.core().worker_id() == 0))
      throw std::runtime_error("should_checkpoint");
    if (argc > 2) {  // outside of what all topologies must agree on
      make_mistake(strategy, argv[2]);
      return 0;
    }
    say("the client's own", torch::rand({2}));
    look_at_random_numbers(strategy);
    say("the client's next", torch::rand({2}));
    look_at_values(strategy);
    look_at_variables(strategy);
    look_at_buffers(strategy);
    train(strategy);
    look_at_devices(strategy);
    look_at_copies(strategy);
    std::fflush(stdout);  // a failed job writes to the same pipe
    merge_unequally(strategy);
    return 0;
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
}
