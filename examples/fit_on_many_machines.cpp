// Trains with `fit` on any number of workers, and continues when it is restarted with the same total number of
// replicas:
//
//   lockstep run -n 2 --restarts 3 ./fit_on_many_machines
//   lockstep run -H host0:2,host1:2 --ssh ./fit_on_many_machines
//
// Only the chief prints and writes files; its disk is the only one that needs the checkpoints.

#include <lockstep/cluster.h>
#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cstdio>

#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

nn::Sequential make_net() {
  return nn::Sequential(nn::Conv2d(1, 16, 3), nn::ReLU(), nn::Flatten(), nn::Dropout(0.2), nn::Linear(16 * 36, 10));
}

int main() {
  try {
    ls::MultiWorkerMirroredStrategy strategy({.seed = 1});
    const auto [known, unseen] = split_digits(load_digits());
    auto net = strategy.make(make_net);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
    ls::train::Model model(net, optimizer,
                           {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}});
    const auto history =
        model.fit(ls::data::from_tensor_slices(known).shuffle(known.count()).batch(64),  // over all workers
                  {.epochs = 6,
                   .validation = ls::data::from_tensor_slices(unseen).batch(64),
                   .callbacks = {ls::train::csv_logger({.path = "many_machines.csv"}),
                                 ls::train::model_checkpoint({.folder = "many_machines", .every = {.seconds = 60}})},
                   .resume = true});
    if (strategy.is_chief())
      std::printf("workers: %d, val_accuracy %.4f\n", strategy.num_workers(), history.last("val_accuracy"));
    return history.last("val_accuracy") > 0.9 ? 0 : 1;
  } catch (const ls::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
