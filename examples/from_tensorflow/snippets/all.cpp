// The small examples of TensorFlow's reference pages: the main API first, then the names of the page. The test compares
// the output with one_worker.txt. The examples of two workers are for `lockstep run -n 2`, which prints
// two_workers.txt.

#include <lockstep/cluster.h>
#include <lockstep/compat.h>
#include <lockstep/contrib.h>
#include <lockstep/data/format/tfrecord.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <numeric>

namespace ls = lockstep;
namespace v1 = lockstep::compat::v1;
namespace towers = lockstep::contrib;
using torch::Tensor;

/// A value, or one per replica, on a line.
void show(const char* what, const std::vector<Tensor>& values) {
  std::cout << what << ":";
  for (const Tensor& value : values) {
    std::cout << " [";
    const Tensor flat = value.to(torch::kDouble).reshape({-1}).contiguous();
    for (std::int64_t i = 0; i < flat.numel(); ++i) std::cout << (i == 0 ? "" : ", ") << flat[i].item<double>();
    std::cout << "]";
  }
  std::cout << "\n";
}
void show(const char* what, const Tensor& value) { show(what, std::vector<Tensor>{value}); }
void show(const char* what, const ls::PerReplica<Tensor>& values) {
  show(what, std::vector<Tensor>(values.begin(), values.end()));
}

Tensor twice(const Tensor& x) { return x * 2; }

/// 1: a dataset of four files, one run per batch. Two workers read two files each.
void four_files(ls::Strategy& strategy, v1::Strategy& old) {
  const auto folder = std::filesystem::temp_directory_path() / ("lockstep_snippets_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::vector<std::string> files;
  for (int k = 0; k < 4; ++k) {
    files.push_back((folder / ("part" + std::to_string(k) + ".tfrecord")).string());
    ls::data::TFRecordWriter writer(files.back());
    for (int i = 0; i < 2; ++i) writer.write(std::to_string(2 * k + i));
  }
  const auto numbers = ls::data::tfrecord_dataset(files)
                           .map([](const std::string& record) { return torch::tensor(std::stod(record)); })
                           .batch(4);
  for (const auto& batch : strategy.distribute(numbers)) show("1 files", strategy.run(twice, batch));
  for (const auto& batch : old.experimental_distribute_dataset(numbers))
    show("1 files, v1", old.run(twice, std::tuple{batch}));
  std::filesystem::remove_all(folder);
}

/// 2 and 4: a function that makes the pipeline of a worker.
void dataset_functions(ls::MirroredStrategy& strategy, v1::MirroredStrategy& old) {
  const auto make = [](const ls::InputContext& input) {
    return ls::data::from_tensor_slices(torch::ones({1, 1}))
        .repeat()
        .batch(input.get_per_replica_batch_size(4))
        .shard(input.num_input_pipelines, input.input_pipeline_id);
  };
  auto steps = strategy.distribute_from_function(make).iterator();
  show("2 dataset function", strategy.run(twice, steps.get_next()));
  auto steps_of_v1 = old.experimental_distribute_datasets_from_function(make).iterator();
  show("2 dataset function, v1", old.run(twice, std::tuple{steps_of_v1.get_next()}));
  show("4 the next step of it", strategy.run(twice, steps.get_next()));
  auto iterator = old.make_input_fn_iterator(make);
  show("4 input_fn iterator, v1", old.experimental_run(twice, iterator));
}

/// 3: arrays in memory, with and without batch.
void arrays(ls::MirroredStrategy& strategy, v1::MirroredStrategy& old) {
  auto rows = strategy.distribute(strategy.make_numpy_dataset(torch::ones({10})).batch(4)).iterator();
  show("3 arrays", rows.get_next());
  auto of_v1 = old.experimental_distribute_dataset(old.experimental_make_numpy_dataset(torch::ones({10})).batch(4));
  show("3 arrays, v1", of_v1.iterator().get_next());
  int count = 0;
  for (const auto& row : strategy.make_numpy_dataset(torch::ones({10}))) count += row.dim() == 0 ? 1 : 0;
  for (const auto& row : old.experimental_make_numpy_dataset(torch::ones({10}))) count += row.dim() == 0 ? 1 : 0;
  std::cout << "3 arrays without batch, by both: " << count << " scalars\n";
}

/// 5: reductions of a whole batch and of a short last one.
void reductions(ls::MirroredStrategy& strategy, v1::MirroredStrategy& old) {
  const ls::PerReplica<Tensor> whole({torch::arange(0., 4.), torch::arange(4., 8.)});
  const ls::PerReplica<Tensor> last({torch::arange(0., 4.), torch::arange(4., 6.)});
  show("5 SUM", strategy.reduce(ls::ReduceOp::Sum, whole));
  show("5 SUM, axis 0", strategy.reduce(ls::ReduceOp::Sum, whole, 0));
  show("5 MEAN, axis 0", strategy.reduce(ls::ReduceOp::Mean, last, 0));
  show("5 SUM, v1", old.reduce("SUM", whole));
  show("5 MEAN, axis 0, v1", old.reduce(v1::ReduceOp::MEAN, last, 0));
  try {
    strategy.reduce(ls::ReduceOp::Sum, last);
  } catch (const ls::InvalidArgument& error) {
    std::cout << "5 shapes differ: L" << error.number() << "\n";
  }
}

/// 6 and 7: variables made in a scope, once. Both strategies have one.
template <class Strategy>
void variables(Strategy& strategy) {
  const auto scope = strategy.scope();
  const ls::Variable one(torch::ones({}), {.name = "one"});
  show("6 a variable in scope", one.values());
  std::optional<ls::Variable> made;
  const auto count = [&] {
    if (!made) made.emplace(torch::zeros({}), ls::VariableOptions{.name = "calls"});
    made->assign_add(torch::ones({}));
  };
  count();
  count();
  show("7 made on the first call only", made->values());
}

/// 8 to 10: epochs over a distributed dataset, whose spec is the signature of the step.
void epochs(ls::MirroredStrategy& strategy, v1::MirroredStrategy& old) {
  const auto numbers = ls::data::from_tensor_slices(torch::arange(0., 8.)).batch(4);
  const auto batches = strategy.distribute(numbers);
  const auto batches_of_v1 = old.experimental_distribute_dataset(numbers);
  const auto sum = [](const Tensor& x) { return x.sum(); };
  for (int epoch = 0; epoch < 2; ++epoch) {
    Tensor total = torch::zeros({}), total_of_v1 = torch::zeros({});
    for (const auto& x : batches) total = total + strategy.reduce(ls::ReduceOp::Sum, strategy.run(sum, x));
    for (const auto& x : batches_of_v1) total_of_v1 = total_of_v1 + old.reduce("sum", old.run(sum, std::tuple{x}));
    show("8 an epoch", {total, total_of_v1});
  }
  for (const auto& x : batches) show("9 with a signature", strategy.run(batches.element_spec(), sum, x));
  for (const auto& x : batches_of_v1)
    show("9 with a signature, v1", old.core().run(batches_of_v1.element_spec(), sum, x));
  const auto make = [&](const ls::InputContext&) { return numbers.repeat(); };
  auto steps = strategy.distribute_from_function(make).iterator();
  auto steps_of_v1 = old.experimental_distribute_datasets_from_function(make).iterator();
  for (int step = 0; step < 2; ++step) {
    show("10 of a dataset function", strategy.run(steps.element_spec(), sum, steps.get_next()));
    show("10 of a dataset function, v1", old.core().run(steps_of_v1.element_spec(), sum, steps_of_v1.get_next()));
  }
}

/// 11 and 12: values of replicas.
void values(ls::MirroredStrategy& strategy, v1::MirroredStrategy& old) {
  show("11 a constant", strategy.run(twice, torch::tensor(3.0)));
  show("11 a constant, v1", old.run(twice, std::tuple{torch::tensor(3.0)}));
  const auto count = [](const ls::ValueContext& its) { return torch::tensor(its.num_replicas_in_sync); };
  show("12 values from a function", strategy.run(twice, strategy.values_from_function(count)));
  show("12 values from a function, v1",
       old.run(twice, std::tuple{old.experimental_distribute_values_from_function(count)}));
}

/// 13 and 14: the number of a replica or tower, and functions that are called once for all of them.
void merges(int n) {
  ls::MirroredStrategy strategy({.devices = ls::cpus(n)});
  towers::MirroredStrategy of_1_11({.devices = ls::cpus(n)});
  const auto say = [](const char* what, const auto& values) {
    std::cout << what << ":";
    for (const auto& value : values) std::cout << " " << std::boolalpha << value;
    std::cout << "\n";
  };
  const auto number = [](const ls::ValueContext& its) { return its.replica_id_in_sync_group; };
  say("13 own number", strategy.run([](int id) { return id == ls::get_replica_context().replica_id_in_sync_group(); },
                                    strategy.values_from_function(number)));
  say("13 worker_device_index, 1.11",
      of_1_11.call_for_each_tower([](int index) { return index == towers::get_tower_context().tower_id(); },
                                  of_1_11.worker_device_index()));

  std::atomic<int> merges{0};
  const auto sum_of = [&](const std::vector<int>& list) {
    ++merges;
    return std::accumulate(list.begin(), list.end(), 0);
  };
  say("14 merge_call", strategy.run([&] {
    auto& replica = ls::get_replica_context();
    const int v = 3 + replica.replica_id_in_sync_group();
    return v +
           replica.merge_call(
               [&](ls::Strategy& its, const ls::PerReplica<int>& all) { return sum_of(its.local_results(all)); }, v);
  }));
  say("14 merge_call, 1.11", of_1_11.unwrap(of_1_11.call_for_each_tower([&] {
    const auto tower = towers::get_tower_context();
    const int v = 3 + tower.tower_id();
    return v + tower.merge_call([&](towers::DistributionStrategy& its,
                                    const towers::PerDevice<int>& all) { return sum_of(its.unwrap(all)); },
                                v);
  })));
  std::cout << "14 merged " << merges << " times, once by each\n";
}

/// 15 and 16: updates of variables that have their components on the same devices. `of` has update and colocate_vars_with,
/// which are `strategy.extended()` of the main API and a strategy of 1.11.
template <class Of>
void updates(Of& of, const ls::Mirrored<Tensor>& ten) {
  const ls::Variable var1(torch::ones({}), {.name = "var1"});
  const auto colocated = of.colocate_vars_with(var1);
  const ls::Variable var2(torch::full({}, 2.0), {.name = "var2"}), var3(torch::full({}, 3.0), {.name = "var3"});
  of.update(
      var1, [](Tensor v, const Tensor& a, const Tensor& b) { return v.add_(a).add_(b); }, var2, var3);
  show("15 variables of one device", var1.values());
  of.update(
      var1, [](Tensor v, const Tensor& a, double b) { return v.add_(a).add_(b); }, ten, 100.0);
  show("16 mirrored and plain arguments", var1.values());
  try {
    const ls::PerReplica<Tensor> one_each({torch::ones({}), torch::zeros({})});
    of.update(
        var1, [](Tensor v, const Tensor& a) { return v.add_(a); }, one_each);
    show("16 one argument per device", var1.values());
  } catch (const ls::InvalidArgument& error) {
    std::cout << "16 one argument per device: L" << error.number() << "\n";
  }
}

/// 17: two workers of four towers have eight copies of each variable.
void four_towers_each(const ls::ClusterSpec& cluster) {
  ls::MultiWorkerMirroredStrategy strategy({.devices = ls::cpus(4)});
  const ls::Variable v = strategy.make_variable(torch::ones({}), {.name = "v"});
  std::cout << "17 replicas: " << strategy.num_replicas_in_sync() << ", copies here: " << v.values().size() << "\n";

  towers::set_logical_cpus(4);  // or .devices = ls::cpus(4) for configure
  towers::MirroredStrategy of_1_11({.num_gpus = 0});
  of_1_11.configure({.cluster_spec = cluster});
  const auto scope = of_1_11.scope();
  const ls::Variable copied(torch::ones({}), {.name = "copied"});
  std::cout << "17 towers: " << of_1_11.num_towers() << "\n";
  show("17 copies in all", of_1_11.unwrap(copied));
}

int main() {
  if (const auto cluster = ls::TFConfigClusterResolver().cluster_spec(); !cluster.empty()) {
    ls::MultiWorkerMirroredStrategy strategy;
    v1::experimental::MultiWorkerMirroredStrategy old;
    four_files(strategy, old);
    four_towers_each(cluster);
    return 0;
  }
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  v1::MirroredStrategy old({"cpu:0", "cpu:1"});
  four_files(strategy, old);
  dataset_functions(strategy, old);
  arrays(strategy, old);
  reductions(strategy, old);
  variables(strategy);
  variables(old);
  epochs(strategy, old);
  values(strategy, old);
  for (const int n : {1, 2}) merges(n);
  {
    const auto scope = strategy.scope();
    const auto everywhere = strategy.run([] { return 0; });
    updates(strategy.extended(), strategy.extended().broadcast_to(torch::tensor(10.0), everywhere));
  }
  towers::MirroredStrategy of_1_11({.devices = ls::cpus(2)});
  {
    const auto scope = of_1_11.scope();
    updates(of_1_11, of_1_11.broadcast(torch::tensor(10.0)));
  }
  ls::MirroredStrategy alone({.devices = ls::cpus(1)});
  show("12 with one replica", alone.run(twice, alone.values_from_function([](const ls::ValueContext& its) {
    return torch::tensor(its.num_replicas_in_sync);
  })));
}
