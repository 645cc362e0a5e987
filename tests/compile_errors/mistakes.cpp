#include <torch/data/example.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "lockstep/compat/v1.h"
#include "lockstep/contrib.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/train.h"

// None of these lines compiles. The comment above a line is part of what the compiler prints for it.
namespace ls = lockstep;

struct Net : torch::nn::Module {
  explicit Net(std::int64_t) {}
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};

void mistakes(ls::MirroredStrategy& strategy, ls::MirroredModule<Net> model,
              ls::MirroredOptimizer<torch::optim::SGD> optimizer, const ls::PerReplica<torch::Tensor>& batch) {
  // error: torch::save cannot save a mirrored model: write lockstep::save(path, model)
  torch::save(model, "model.pt");
  // error: torch::load cannot load a mirrored model: write lockstep::load(path, model)
  torch::load(model, "model.pt");
  // error: torch::save cannot save a mirrored optimizer: write lockstep::save(path, model, optimizer)
  torch::save(optimizer, "optimizer.pt");
  // error: torch::load cannot load a mirrored optimizer: write lockstep::load(path, model, optimizer)
  torch::load(optimizer, "optimizer.pt");

  // error: strategy.run(f, args...) cannot call f with these arguments: f gets a `const T&` for each of them
  ls::PerReplica<torch::Tensor> losses = strategy.run([](torch::Tensor& x) { return x; }, batch);
  // error: values_from_function(f) calls f(const lockstep::ValueContext&) for each replica
  auto values = strategy.values_from_function([](int a, int b) { return a + b; });
  // error: strategy.split cuts a batch, and this is a list of examples: stack them with
  auto parts = strategy.split(std::vector<torch::data::Example<>>());
  // error: strategy.split cuts a batch, and this is a list of examples
  auto halves = strategy.split(std::vector<torch::data::TensorExample>());
  // error: merge_call(f, args...) calls f(lockstep::Strategy&, lockstep::PerReplica<T>...)
  auto merged = ls::get_replica_context().merge_call([](torch::Tensor x) { return x; }, losses[0]);
  // error: update(variable, f, args...) calls f(component, args...), with the component as a torch::Tensor
  strategy.extended().update(ls::Variable(losses[0]), [](int) {});

  ls::compat::v1::Strategy names(strategy);
  // error: positional args must be a list or tuple: write strategy.run(fn, std::tuple{x})
  auto named = names.run([](const torch::Tensor& x) { return x; }, batch);
  // error: input_fn must return a Dataset, or a callable without arguments
  auto input = names.make_input_fn_iterator([](const ls::InputContext&) { return 3; });

  Net net(3);
  torch::nn::Sequential sequential;
  // error: strategy.make builds a module per replica and cannot take one that exists
  auto made = strategy.make(sequential);
  // error: strategy.make(f) calls f without arguments and takes ModuleOptions at most
  auto with_size = strategy.make([](int size) { return torch::nn::Linear(size, 1); }, 3);
  // error: strategy.make<Net>(arguments...): Net has no constructor for these arguments
  auto built = strategy.make<Net>("three");
  // error: needs a class derived from torch::nn::Module, or a holder
  auto number = strategy.make<int>(3);

  // error: make_optimizer needs the model that strategy.make returned, not a module of one replica
  auto of_net = strategy.make_optimizer<torch::optim::SGD>(net, 0.1);
  // error: make_optimizer needs options or a learning rate: strategy.make_optimizer<Opt>(model, 0.1)
  auto without_rate = strategy.make_optimizer<torch::optim::SGD>(model);
  // error: make_optimizer needs the optimizer's class: strategy.make_optimizer<torch::optim::SGD>(model, 0.1)
  auto without_class = strategy.make_optimizer(model, 0.1);
  // error: make_optimizer<Opt>(model, options): Opt cannot be built with these options
  auto of_other_class = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::AdamOptions(0.1));
  // error: LibTorch's optimizers and functions do not take a mirrored model: write strategy.make_optimizer
  torch::optim::SGD plain(model, 0.1);

  // error: an optimizer of Lockstep is not a torch::optim::Optimizer: for a schedule call optimizer.set_learning_rate(rate)
  torch::optim::StepLR schedule(optimizer, 30, 0.1);
  // error: distribute takes an ls::data::Dataset
  auto distributed = strategy.distribute(std::vector<torch::Tensor>());

  // error: lockstep::save takes the path first: save(path, model)
  ls::save(model, "model.safetensors");
  // error: lockstep::load takes the path first: load(path, model)
  ls::load(model, "model.safetensors");
  // error: lockstep::save(path, model, optimizer) saves the model that strategy.make returned
  ls::save("model.safetensors", sequential);
  // error: lockstep::load(path, model, optimizer) loads into the model that strategy.make returned
  ls::load("model.safetensors", optimizer);
  // error: lockstep::save(path, model, optimizer) saves one model and its optimizer, with SaveOptions at the end
  ls::save("model.safetensors", model, model);
  // error: lockstep::save(path, model, optimizer) saves one model and its optimizer, with SaveOptions at the end
  ls::save("model.safetensors", model, optimizer, 3);
  // error: lockstep::save(path, tensors) saves a std::map<std::string, torch::Tensor>
  ls::save("model.safetensors", losses[0]);
  // error: lockstep::save(path, tensors) saves a std::map<std::string, torch::Tensor>
  ls::save("model.safetensors", model.parameters());
  // error: lockstep::load(path, model, optimizer) loads one model and its optimizer, with LoadOptions at the end
  ls::load("model.safetensors", model, false);
  std::map<std::string, torch::Tensor> tensors;
  // error: lockstep::load(path, model, optimizer) loads into the model that strategy.make returned
  ls::load("model.safetensors", tensors);
  // error: lockstep::load(path, model) loads into a model; load_tensors(path) returns the tensors of a file
  tensors = ls::load("model.safetensors");
}

void mistakes_of_models(ls::train::Model& model, const ls::train::Batches<torch::Tensor>& batches) {
  using namespace ls::train::metrics;
  // error: a loss must be a function of two values whose types are written out
  const ls::train::Loss loss = [](const torch::Tensor& output) { return output; };
  // error: select(metric, f) calls f(output), f(output, target) or f(output, batch)
  select(mse(), [](int, int, int) { return torch::Tensor(); });
  // error: select(metric, f): f must return a tensor, or a pair of the output and the target to measure
  select(mse(), [](const torch::Tensor&) { return 3; });
  // error: predict joins the rows of tensors: let the model's forward return tensors or structures of them
  model.predict<int>(batches);
}

void mistakes_of_ports(ls::contrib::MirroredStrategy& towers, ls::compat::v1::MirroredStrategy& old,
                       const ls::Variable& variable, ls::contrib::TowerIterator<torch::Tensor>& steps) {
  const auto wrong = [](const std::string&) {};
  // error: call_for_each_tower(f, args...) cannot call f with these arguments
  towers.call_for_each_tower(wrong);
  // error: map(items, f, args...) calls f(item, args...)
  towers.map(std::vector<int>{1}, wrong);
  // error: update(variable, f, args...) calls f(component, args...)
  towers.update(variable, wrong);
  // error: update_non_slot(devices, f, args...) calls f(args...)
  towers.update_non_slot(towers.worker_devices(), wrong);
  // error: run_steps_on_dataset(f, iterator) calls f(contrib::MultiStepContext&, contrib::PerDevice<T>)
  towers.run_steps_on_dataset(wrong, steps);
  // error: merge_call(f, args...) calls f(contrib::DistributionStrategy&, contrib::PerDevice<T>...)
  ls::contrib::get_tower_context().merge_call(wrong, 3);
  // error: distribute_dataset takes a function that returns a Dataset
  towers.distribute_dataset(ls::data::range(4));
  // error: distribute_dataset takes a function that returns a Dataset
  towers.distribute_dataset([] { return 3; });
  // error: reduce takes a tensor or number of each tower: reduce the parts of a structure one by one
  towers.reduce(ls::contrib::VariableAggregation::SUM, ls::PerReplica<std::pair<int, int>>({{1, 2}}), "cpu:0");
  // error: map(items, f, args...) calls f(item, args...), which returns a result
  towers.map(std::vector<int>{1}, [](int) {});

  // error: make_input_fn_iterator(f) calls f(const InputContext&)
  old.make_input_fn_iterator(wrong);
  auto iterator = old.make_dataset_iterator(ls::data::range(4).batch(2));
  // error: experimental_run_steps_on_iterator(fn, iterator) calls fn(contrib::MultiStepContext&, PerReplica<T>)
  old.extended().experimental_run_steps_on_iterator(wrong, iterator);
}
