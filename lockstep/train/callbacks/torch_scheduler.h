#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/train/callback.h"

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace lockstep::train {

/// Options of `torch_scheduler`.
struct TorchSchedulerOptions {
  bool every_step = false;               ///< the scheduler steps before each training step, not before each epoch
  std::string name = "torch_scheduler";  ///< names its state in checkpoints
};

/// Makes a scheduler of the optimizer that it is given.
using MakeTorchScheduler = std::function<std::shared_ptr<torch::optim::LRScheduler>(torch::optim::Optimizer&)>;

/// Sets the learning rates of all parameter groups with a scheduler of LibTorch's, or of a class of yours that derives from
/// `torch::optim::LRScheduler`:
///
///     ls::train::torch_scheduler(optimizer, [](torch::optim::Optimizer& of) {
///       return std::make_shared<torch::optim::StepLR>(of, /*step_size=*/30, /*gamma=*/0.1);
///     })
///
/// The scheduler gets a stand-in that has the groups and the learning rates of the optimizer, and nothing else of it. A resumed
/// training makes a new one and repeats its steps, so its rates must follow from the number of steps and the first rates. For
/// `ReduceLROnPlateauScheduler`, which is none of these, there is `reduce_on_plateau`.
LOCKSTEP_EXPORT std::shared_ptr<Callback> torch_scheduler(MirroredOptimizerBase optimizer, MakeTorchScheduler make,
                                                          const TorchSchedulerOptions& options = {});

}  // namespace lockstep::train
