#include "lockstep/nn/torch_optimizers.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_class.h"

namespace lockstep {

using TorchParamState = torch::optim::OptimizerParamState;

namespace detail {
namespace {

constexpr const char* kSizes = "use a finite number >= 0; typical learning rates are 0.1 to 0.0001";

[[noreturn]] void refuse(std::size_t group, const char* name, double value, const char* help) {
  throw InvalidArgument(errors::kBadOption,
                        {.what = lockstep::str("an optimizer cannot work with ", name, " = ", value),
                         .where = lockstep::str("parameter group ", group),
                         .help = help});
}

struct Check {
  std::size_t group;

  void size(const char* name, double value) const {
    if (!(std::isfinite(value) && value >= 0)) refuse(group, name, value, kSizes);
  }
  void decay(const char* name, double value) const {
    if (!(value >= 0 && value < 1)) refuse(group, name, value, "use a number >= 0 and < 1");
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

/// The options as `Class`, const if they are; null if they are of another class.
template <class Class, class Options>
auto* as_class(Options& options) {
  return dynamic_cast<std::conditional_t<std::is_const_v<Options>, const Class, Class>*>(&options);
}

template <class Options, class See>
void see_adam(Options& options, See&& see) {
  see("beta 1", std::get<0>(options.betas()));
  see("beta 2", std::get<1>(options.betas()));
  see("eps", options.eps());
  see("weight_decay", options.weight_decay());
  see("amsgrad", options.amsgrad());
}

/// Every option except the learning rate, by its name and a reference to its value.
template <class Options, class See>
void see_options(Options& options, See&& see) {
  if (auto* const sgd = as_class<torch::optim::SGDOptions>(options)) {
    see("momentum", sgd->momentum());
    see("dampening", sgd->dampening());
    see("weight_decay", sgd->weight_decay());
    see("nesterov", sgd->nesterov());
  } else if (auto* const adam = as_class<torch::optim::AdamOptions>(options)) {
    see_adam(*adam, see);
  } else if (auto* const adamw = as_class<torch::optim::AdamWOptions>(options)) {
    see_adam(*adamw, see);
  } else if (auto* const rmsprop = as_class<torch::optim::RMSpropOptions>(options)) {
    see("alpha", rmsprop->alpha());
    see("eps", rmsprop->eps());
    see("weight_decay", rmsprop->weight_decay());
    see("momentum", rmsprop->momentum());
    see("centered", rmsprop->centered());
  } else if (auto* const adagrad = as_class<torch::optim::AdagradOptions>(options)) {
    see("lr_decay", adagrad->lr_decay());
    see("weight_decay", adagrad->weight_decay());
    see("initial_accumulator_value", adagrad->initial_accumulator_value());
    see("eps", adagrad->eps());
  }
}

at::Tensor number_tensor(std::int64_t value) { return at::scalar_tensor(value, at::kLong); }

std::int64_t number_of(const ParameterState& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end() || !is_count(found->second)) {
    throw InvalidArgument(
        errors::kOptimizer,
        {.what = found == state.end() ? lockstep::str("the saved state has no '", key, "'")
                                      : lockstep::str("'", key, "' of the saved state is not a whole number >= 0"),
         .where = "load_state",
         .help = "load what state() of an optimizer of the same class returned"});
  }
  return found->second.item<std::int64_t>();
}

/// Undefined if absent.
at::Tensor tensor_of(const ParameterState& state, const char* key) {
  const auto found = state.find(key);
  return found == state.end() ? at::Tensor() : found->second;
}

/// Adam and AdamW have the same state.
template <class State>
ParameterState read_adam(const TorchParamState& any) {
  const auto& state = static_cast<const State&>(any);
  ParameterState result{
      {"step", number_tensor(state.step())}, {"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
  if (state.max_exp_avg_sq().defined()) result["max_exp_avg_sq"] = state.max_exp_avg_sq();
  return result;
}

template <class State>
std::unique_ptr<TorchParamState> write_adam(const ParameterState& values) {
  auto state = std::make_unique<State>();
  state->step(number_of(values, "step"));
  state->exp_avg(tensor_of(values, "exp_avg"));
  state->exp_avg_sq(tensor_of(values, "exp_avg_sq"));
  state->max_exp_avg_sq(tensor_of(values, "max_exp_avg_sq"));
  return state;
}

}  // namespace

bool is_count(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() != 1 || tensor.is_complex()) return false;
  constexpr double kMost = 9007199254740992;  // beyond it a double skips whole numbers
  const double value = tensor.item<double>();
  return value >= 0 && value <= kMost && value == std::floor(value);
}

void require_valid_options(std::size_t group, const torch::optim::OptimizerOptions& options) {
  const Check check{group};
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    check.size("lr", sgd->lr());
    check.size("momentum", sgd->momentum());
    check.size("weight_decay", sgd->weight_decay());
    if (!std::isfinite(sgd->dampening())) refuse(group, "dampening", sgd->dampening(), "use a finite number");
    if (!sgd->nesterov()) return;
    if (!(sgd->momentum() > 0))
      refuse(group, "nesterov and momentum", sgd->momentum(), "Nesterov momentum needs a momentum > 0");
    if (sgd->dampening() != 0)
      refuse(group, "nesterov and dampening", sgd->dampening(), "Nesterov momentum needs a dampening of 0");
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
    check_adam(check, *adam);
  } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
    check_adam(check, *adamw);
  } else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
    check.size("lr", rmsprop->lr());
    check.size("alpha", rmsprop->alpha());
    check.size("eps", rmsprop->eps());
    check.size("momentum", rmsprop->momentum());
    check.size("weight_decay", rmsprop->weight_decay());
  } else if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradOptions*>(&options)) {
    check.size("lr", adagrad->lr());
    check.size("lr_decay", adagrad->lr_decay());
    check.size("weight_decay", adagrad->weight_decay());
    check.size("initial_accumulator_value", adagrad->initial_accumulator_value());
    check.size("eps", adagrad->eps());
  }
}

void for_each_option(const torch::optim::OptimizerOptions& options,
                     FunctionRef<void(const char* name, double value)> see) {
  see("lr", options.get_lr());
  see_options(options, [&](const char* name, const auto& value) { see(name, static_cast<double>(value)); });
}

void set_options(torch::optim::OptimizerOptions& options, FunctionRef<double(const char* name)> value_of) {
  options.set_lr(value_of("lr"));
  see_options(options, [&](const char* name, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(value_of(name));
  });
}

const char* why_not_sparse(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options) {
  // Exactly these types: a derived class may support them.
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::Adam)) return "Adam";
  if (type == typeid(torch::optim::AdamW)) return "AdamW";
  if (type == typeid(torch::optim::RMSprop)) return "RMSprop";
  if (type == typeid(torch::optim::SGD) && static_cast<const torch::optim::SGDOptions&>(options).weight_decay() != 0)
    return "SGD with weight_decay";
  if (type == typeid(torch::optim::Adagrad) &&
      static_cast<const torch::optim::AdagradOptions&>(options).weight_decay() != 0)
    return "Adagrad with weight_decay";
  return nullptr;
}

bool adds_state_to_gradient(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options) {
  return typeid(optimizer) == typeid(torch::optim::SGD) &&
         static_cast<const torch::optim::SGDOptions&>(options).nesterov();
}

OptionalState optional_state(const torch::optim::OptimizerOptions& options) {
  const auto key_if = [](bool is_kept, const char* key) { return is_kept ? key : nullptr; };
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return {key_if(adam->amsgrad(), "max_exp_avg_sq")};
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return {key_if(adamw->amsgrad(), "max_exp_avg_sq")};
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options))
    return {key_if(rmsprop->momentum() > 0, "momentum_buffer"), key_if(rmsprop->centered(), "grad_avg")};
  return {};
}

const char* missing_state(const torch::optim::OptimizerOptions& options, const ParameterState& state) {
  if (state.empty()) return nullptr;
  for (const char* key : optional_state(options)) {
    if (key != nullptr && state.count(key) == 0) return key;
  }
  return nullptr;
}

void throw_unknown_state() {
  throw Unimplemented(errors::kOptimizer, {.what = "the state of this optimizer class is unknown to Lockstep",
                                           .help = "specialise lockstep::OptimizerStateTraits for it"});
}

template OptimizerClass optimizer_class_of<torch::optim::SGD, torch::optim::SGDOptions>();
template OptimizerClass optimizer_class_of<torch::optim::Adam, torch::optim::AdamOptions>();
template OptimizerClass optimizer_class_of<torch::optim::AdamW, torch::optim::AdamWOptions>();
template OptimizerClass optimizer_class_of<torch::optim::RMSprop, torch::optim::RMSpropOptions>();
template OptimizerClass optimizer_class_of<torch::optim::Adagrad, torch::optim::AdagradOptions>();

}  // namespace detail

ParameterState OptimizerStateTraits<torch::optim::SGD>::read(const TorchParamState& any) {
  const auto& state = static_cast<const torch::optim::SGDParamState&>(any);
  return state.momentum_buffer().defined() ? ParameterState{{"momentum_buffer", state.momentum_buffer()}}
                                           : ParameterState{};
}
std::unique_ptr<TorchParamState> OptimizerStateTraits<torch::optim::SGD>::write(const ParameterState& values) {
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(detail::tensor_of(values, "momentum_buffer"));
  return state;
}

ParameterState OptimizerStateTraits<torch::optim::Adam>::read(const TorchParamState& any) {
  return detail::read_adam<torch::optim::AdamParamState>(any);
}
std::unique_ptr<TorchParamState> OptimizerStateTraits<torch::optim::Adam>::write(const ParameterState& values) {
  return detail::write_adam<torch::optim::AdamParamState>(values);
}

ParameterState OptimizerStateTraits<torch::optim::AdamW>::read(const TorchParamState& any) {
  return detail::read_adam<torch::optim::AdamWParamState>(any);
}
std::unique_ptr<TorchParamState> OptimizerStateTraits<torch::optim::AdamW>::write(const ParameterState& values) {
  return detail::write_adam<torch::optim::AdamWParamState>(values);
}

ParameterState OptimizerStateTraits<torch::optim::RMSprop>::read(const TorchParamState& any) {
  const auto& state = static_cast<const torch::optim::RMSpropParamState&>(any);
  ParameterState result{{"step", detail::number_tensor(state.step())}, {"square_avg", state.square_avg()}};
  if (state.momentum_buffer().defined()) result["momentum_buffer"] = state.momentum_buffer();
  if (state.grad_avg().defined()) result["grad_avg"] = state.grad_avg();
  return result;
}
std::unique_ptr<TorchParamState> OptimizerStateTraits<torch::optim::RMSprop>::write(const ParameterState& values) {
  auto state = std::make_unique<torch::optim::RMSpropParamState>();
  state->step(detail::number_of(values, "step"));
  state->square_avg(detail::tensor_of(values, "square_avg"));
  state->momentum_buffer(detail::tensor_of(values, "momentum_buffer"));
  state->grad_avg(detail::tensor_of(values, "grad_avg"));
  return state;
}

ParameterState OptimizerStateTraits<torch::optim::Adagrad>::read(const TorchParamState& any) {
  const auto& state = static_cast<const torch::optim::AdagradParamState&>(any);
  return {{"step", detail::number_tensor(state.step())}, {"sum", state.sum()}};
}
std::unique_ptr<TorchParamState> OptimizerStateTraits<torch::optim::Adagrad>::write(const ParameterState& values) {
  auto state = std::make_unique<torch::optim::AdagradParamState>();
  state->step(detail::number_of(values, "step"));
  state->sum(detail::tensor_of(values, "sum"));
  return state;
}

}  // namespace lockstep
