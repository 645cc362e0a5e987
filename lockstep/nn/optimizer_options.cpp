#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_local.h"
#include "lockstep/nn/outside_of_run.h"

// LibTorch looks at the options of the first group only, and only when an optimizer is made. Here those of all groups
// are looked at, and again before each update: they may have been changed.
namespace lockstep {
namespace {

constexpr const char* kSizes = "use finite numbers that are not negative; typical learning rates are 0.1 to 0.0001";

[[noreturn]] void refuse(std::size_t group, const char* name, double value, const char* help) {
  throw InvalidArgument(errors::kBadOption, {.what = str("an optimizer cannot work with ", name, " = ", value),
                                             .where = str("parameter group ", group),
                                             .help = help});
}

struct Check {
  std::size_t group;

  void size(const char* name, double value) const {
    if (!(std::isfinite(value) && value >= 0)) refuse(group, name, value, kSizes);
  }
  void decay(const char* name, double value) const {
    if (!(value >= 0 && value < 1)) refuse(group, name, value, "use a number from 0 to below 1");
  }
};

template <class Options>
void check_adam(const Check& check, const Options& options) {
  check.size("lr", options.lr());
  check.size("eps", options.eps());
  check.decay("the first of its betas", std::get<0>(options.betas()));
  check.decay("the second of its betas", std::get<1>(options.betas()));
  check.size("weight_decay", options.weight_decay());
}

void check_options(const Check& check, const torch::optim::OptimizerOptions& any) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&any)) {
    check.size("lr", sgd->lr());
    check.size("momentum", sgd->momentum());
    check.size("weight_decay", sgd->weight_decay());
    if (!std::isfinite(sgd->dampening())) refuse(check.group, "dampening", sgd->dampening(), "use a finite number");
    if (!sgd->nesterov()) return;
    if (!(sgd->momentum() > 0))
      refuse(check.group, "nesterov and momentum", sgd->momentum(), "Nesterov's way needs a momentum above 0");
    if (sgd->dampening() != 0)
      refuse(check.group, "nesterov and dampening", sgd->dampening(), "Nesterov's way needs a dampening of 0");
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&any)) {
    check_adam(check, *adam);
  } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&any)) {
    check_adam(check, *adamw);
  } else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&any)) {
    check.size("lr", rmsprop->lr());
    check.size("alpha", rmsprop->alpha());
    check.size("eps", rmsprop->eps());
    check.size("momentum", rmsprop->momentum());
    check.size("weight_decay", rmsprop->weight_decay());
  } else if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradOptions*>(&any)) {
    check.size("lr", adagrad->lr());
    check.size("lr_decay", adagrad->lr_decay());
    check.size("weight_decay", adagrad->weight_decay());
    check.size("initial_accumulator_value", adagrad->initial_accumulator_value());
    check.size("eps", adagrad->eps());
  }
}

}  // namespace

void OptimizerCore::require_valid_options() const {
  for (std::size_t g = 0; g < groups_.size(); ++g) check_options({g}, *groups_[g].options);
}

void OptimizerCore::set_learning_rate(double rate) {
  detail::require_outside_of_run("set_learning_rate");
  if (!(std::isfinite(rate) && rate >= 0)) {
    throw InvalidArgument(errors::kBadOption, {.what = str("a learning rate must be finite and not negative: ", rate),
                                               .where = "set_learning_rate",
                                               .help = "look at the schedule that it comes from"});
  }
  for (auto& group : groups_) group.options->set_lr(rate);
}

}  // namespace lockstep
