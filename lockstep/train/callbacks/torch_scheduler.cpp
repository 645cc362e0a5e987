#include "lockstep/train/callbacks/torch_scheduler.h"

#include <ATen/ops/zeros.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/train/exact_numbers.h"
#include "lockstep/train/require_option.h"

namespace lockstep::train {
namespace {

/// An optimizer that has nothing but learning rates.
std::unique_ptr<torch::optim::Optimizer> stand_in(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates)
    groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(rate));
  return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(rates.at(0)));
}

class TorchScheduler final : public Callback {
 public:
  TorchScheduler(MirroredOptimizerBase optimizer, MakeTorchScheduler make, TorchSchedulerOptions options)
      : optimizer_(std::move(optimizer)), make_(std::move(make)), options_(std::move(options)) {
    detail::require_option(static_cast<bool>(make_), options_.name,
                           "torch_scheduler needs a function that makes the scheduler",
                           "give it one that returns std::make_shared<StepLR>(optimizer, 30)");
  }
  std::string name() const override { return options_.name; }

  Decision train_begins(const Training&) override {
    const std::int64_t before = std::exchange(is_restored_, false) ? steps_ : 0;
    if (before == 0) first_rates_ = rates_of_optimizer();
    stand_in_ = stand_in(first_rates_);
    scheduler_ = make_(*stand_in_);
    detail::require_option(scheduler_ != nullptr, options_.name, "the function given to torch_scheduler returned null",
                           "return std::make_shared of a scheduler");
    for (steps_ = 0; steps_ < before; ++steps_) scheduler_->step();
    if (options_.every_step && before == 0) step();
    return {};
  }
  Decision epoch_begins(const Training&) override {
    if (!options_.every_step) step();
    return {};
  }
  Decision batch_ends(const Training&) override {
    if (options_.every_step) step();
    return {};
  }
  Decision train_ends(const Training&) override {
    scheduler_ = nullptr;  // it refers to the stand-in
    stand_in_ = nullptr;
    return {};
  }

  std::string to_text() const override {
    nlohmann::json rates = nlohmann::json::array();
    for (const double rate : first_rates_) rates.push_back(detail::exact_text(rate));
    return nlohmann::json{{"steps", steps_}, {"first_rates", rates}}.dump();
  }
  void from_text(const std::string& text) override {
    const auto state = nlohmann::json::parse(text);
    steps_ = state.at("steps");
    first_rates_.clear();
    for (const auto& rate : state.at("first_rates")) first_rates_.push_back(detail::exact_number(rate));
    is_restored_ = true;
  }

 private:
  std::vector<double> rates_of_optimizer() const {
    std::vector<double> rates;
    for (std::size_t group = 0; group < optimizer_.group_count(); ++group)
      rates.push_back(optimizer_.learning_rate(group));
    return rates;
  }
  /// Every worker does the same.
  void step() {
    scheduler_->step();
    ++steps_;
    const auto& groups = stand_in_->param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const double rate = groups[group].options().get_lr();
      if (rate != optimizer_.learning_rate(group)) optimizer_.set_learning_rate(rate, group);
    }
  }

  MirroredOptimizerBase optimizer_;
  MakeTorchScheduler make_;
  TorchSchedulerOptions options_;
  std::vector<double> first_rates_;
  std::int64_t steps_ = 0;
  bool is_restored_ = false;
  std::unique_ptr<torch::optim::Optimizer> stand_in_;
  std::shared_ptr<torch::optim::LRScheduler> scheduler_;
};

}  // namespace

std::shared_ptr<Callback> torch_scheduler(MirroredOptimizerBase optimizer, MakeTorchScheduler make,
                                          const TorchSchedulerOptions& options) {
  return std::make_shared<TorchScheduler>(std::move(optimizer), std::move(make), options);
}

}  // namespace lockstep::train
