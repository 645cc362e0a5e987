// A tower program of TensorFlow 1.11, with several steps per call, next to the same program in Lockstep's main API.
//
//   with strategy.scope(): ...                                     # 1.11
//   iterator = strategy.distribute_dataset(input_fn).make_one_shot_iterator()
//   ctx = strategy.run_steps_on_dataset(step_fn, iterator, iterations=10)

#include <lockstep/contrib.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

namespace ls = lockstep;
namespace tf = lockstep::contrib;

ls::data::Dataset<std::pair<torch::Tensor, torch::Tensor>> batches() {
  const torch::Tensor x = torch::linspace(-1, 1, 240).view({60, 4});
  return ls::data::from_tensor_slices(std::pair{x, x.sum(1, true)}).repeat().batch(6);
}

torch::Tensor mean_loss(torch::nn::LinearImpl& net, const torch::Tensor& x, const torch::Tensor& y) {
  return torch::mse_loss(net.forward(x), y);
}

torch::Tensor with_towers() {
  torch::manual_seed(1);
  tf::MirroredStrategy strategy({.devices = ls::cpus(2), .intra_op_threads = 1});
  auto model = strategy.core().make<torch::nn::Linear>(4, 1);
  auto optimizer = strategy.core().make_optimizer<torch::optim::SGD>(model, 0.1);
  auto iterator = strategy.distribute_dataset(batches).make_one_shot_iterator();

  const auto train = [&](const torch::Tensor& x, const torch::Tensor& y) {
    const torch::Tensor loss = mean_loss(*model, x, y);
    tf::minimize(optimizer, loss, tf::LossReduction::MEAN);
    return loss.detach();
  };
  const auto step = [&](tf::MultiStepContext& ctx, const auto& x, const auto& y) {
    ctx.set_last_step_output("loss", strategy.call_for_each_tower(train, x, y), tf::VariableAggregation::MEAN);
  };
  auto ctx = strategy.run_steps_on_dataset(step, iterator, 10);
  std::cout << "towers, 10 steps: loss " << ctx.last_step_outputs().at("loss").tensor().item<float>() << "\n";
  ctx.run_op();  // ten more
  return ctx.last_step_outputs().at("loss");
}

torch::Tensor with_the_main_api() {
  torch::manual_seed(1);
  ls::MirroredStrategy strategy({.devices = ls::cpus(2), .intra_op_threads = 1});
  auto model = strategy.make<torch::nn::Linear>(4, 1);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, 0.1);
  const auto train = [&](const std::pair<torch::Tensor, torch::Tensor>& batch) {
    const torch::Tensor loss = mean_loss(*model, batch.first, batch.second);
    optimizer.minimize(loss / 2);  // each of the two replicas has the mean of its own batch
    return loss.detach();
  };
  auto steps = strategy.distribute_from_function([](const ls::InputContext&) { return batches(); }).iterator();
  torch::Tensor loss;
  for (int step = 0; step < 20; ++step)
    loss = strategy.reduce(ls::ReduceOp::Mean, strategy.run(train, steps.get_next()));
  return loss;
}

int main() {
  const torch::Tensor towers = with_towers(), main_api = with_the_main_api();
  std::cout << "20 steps: loss " << towers.item<float>() << " with towers, " << main_api.item<float>()
            << " with the main API\n";
  return towers.equal(main_api) ? 0 : 1;
}
