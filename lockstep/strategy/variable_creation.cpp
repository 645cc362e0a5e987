#include <ATen/core/grad_mode.h>

#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/print.h"

// How variables come to be: checks, names, components.
namespace lockstep {
namespace {

constexpr const char* kDefaultName = "Variable";

thread_local const Variable* colocated_with = nullptr;

std::string component_name_of(const std::string& name, std::size_t k) {
  return k == 0 ? name : lockstep::str(name, "/replica_", k);
}

/// A number may have been cast to the type.
template <class Enum>
bool is_enumerator(Enum value) {
  return to_string(value) != "invalid";
}

VariableOptions checked(VariableOptions options, const at::Tensor& initial_value) {
  const auto fail = [&](std::string what, std::string help) {
    throw InvalidArgument(
        errors::kVariableMode,
        {.what = std::move(what), .where = lockstep::str("variable '", options.name, "'"), .help = std::move(help)});
  };
  if (options.name.empty()) options.name = kDefaultName;
  if (!initial_value.defined())
    fail("the initial value of a variable must be a defined tensor", "pass a tensor, for instance torch::zeros({})");
  if (options.synchronization == Synchronization::Auto) options.synchronization = Synchronization::OnWrite;
  if (options.synchronization == Synchronization::None)
    fail("Synchronization::None is not supported", "use Synchronization::Auto, OnWrite or OnRead");
  if (!is_enumerator(options.synchronization)) {
    fail(lockstep::str("synchronization must be one of its enumerators, got ",
                       static_cast<int>(options.synchronization)),
         "use Synchronization::Auto, OnWrite or OnRead");
  }
  if (!is_enumerator(options.aggregation)) {
    fail(lockstep::str("aggregation must be one of its enumerators, got ", static_cast<int>(options.aggregation)),
         "use Aggregation::None, Sum, Mean or OnlyFirstReplica");
  }
  if (!options.dtype) options.dtype = initial_value.scalar_type();
  if (options.aggregation == Aggregation::Mean && !at::isFloatingType(*options.dtype) &&
      !at::isComplexType(*options.dtype)) {
    fail(lockstep::str("Aggregation::Mean needs a floating dtype, got ", dtype_name(*options.dtype)),
         "use a floating dtype, or another aggregation");
  }
  if (!options.trainable) options.trainable = options.synchronization != Synchronization::OnRead;
  return options;
}

std::shared_ptr<Variable::Impl> create_distributed(Strategy& strategy, const at::Tensor& initial_value,
                                                   const VariableOptions& options) {
  const Devices devices = colocated_with ? Destinations(*colocated_with).resolve(strategy) : strategy.devices();
  WorkerGroup* const workers = detail::StrategyAccess::workers(strategy);
  if (workers == nullptr || !initial_value.defined())
    return Variable::Impl::create(&strategy, initial_value, options, devices);
  // The form is compared with the name: a worker whose own is different would compute with another variable than it made.
  const std::string name = options.name.empty() ? kDefaultName : options.name;
  const at::Tensor chiefs = workers::broadcast(
      *workers, initial_value,
      lockstep::str("initial value of variable '", name, "', ",
                    dtype_name(options.dtype.value_or(initial_value.scalar_type())), " ", initial_value.sizes()),
      deadline_of(strategy.communication()));
  return Variable::Impl::create(&strategy, chiefs, options, devices);
}

/// Inside replicas one variable is made for all of them: replica 0's. The others must ask for the same one.
std::shared_ptr<Variable::Impl> create_in_replica(ReplicaContext& replica, const Variable::Initializer& initializer,
                                                  const VariableOptions& options) {
  return replica.merge_call(
      [](Strategy& strategy, const PerReplica<Variable::Initializer>& initializers,
         const PerReplica<VariableOptions>& wanted) {
        for (std::size_t k = 1; k < wanted.size(); ++k) {
          if (canonical_variable_name(wanted[k].name) == canonical_variable_name(wanted[0].name)) continue;
          throw FailedPrecondition(
              errors::kVariableName,
              {.what = "replicas create variables of different names at the same point",
               .seen = lockstep::str(detail::replica_name(strategy, 0), ": '", wanted[0].name, "', ",
                                     detail::replica_name(strategy, k), ": '", wanted[k].name, "'"),
               .help = "create the same variables in the same order on every replica"});
        }
        return create_distributed(strategy, initializers[0](), wanted[0]);
      },
      initializer, options);
}

std::shared_ptr<Variable::Impl> create_here(const Variable::Initializer& initializer, const VariableOptions& options) {
  if (!has_strategy()) return Variable::Impl::create(nullptr, initializer(), options, default_strategy().devices());
  if (in_replica_context()) return create_in_replica(get_replica_context(), initializer, options);
  Strategy& strategy = get_strategy();
  return detail::or_fail_together(strategy, "making a variable",
                                  [&] { return create_distributed(strategy, initializer(), options); });
}

}  // namespace

std::shared_ptr<Variable::Impl> Variable::Impl::create(Strategy* strategy, const at::Tensor& initial_value,
                                                       const VariableOptions& options, Devices devices) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<Impl> impl(new Impl);
  impl->options_ = checked(options, initial_value);
  impl->distributed_ = strategy != nullptr;
  if (strategy) impl->strategy_ = detail::StrategyAccess::alive(*strategy);
  impl->initial_value_ = initial_value.detach().to(*impl->options_.dtype).clone();
  for (std::size_t k = 0; k < devices.size(); ++k) {
    at::Tensor component = impl->initial_value_.to(torch_device(canonicalize(devices[k]))).clone();
    component.requires_grad_(*impl->options_.trainable && at::isFloatingType(*impl->options_.dtype));
    impl->values_.push_back(std::move(component));
  }
  if (strategy) impl->number_ = strategy->extended().remember(Variable(impl));
  return impl;
}

std::shared_ptr<Variable::Impl> Variable::Impl::copy(const Impl& original, const std::string& name) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<Impl> impl(new Impl);
  impl->options_ = original.options_;
  if (!name.empty()) impl->options_.name = name;
  impl->distributed_ = original.distributed_;
  impl->strategy_ = original.strategy_;
  impl->initial_value_ = original.initial_value_;
  for (const at::Tensor& component : original.values_) {
    impl->values_.push_back(component.detach().clone().requires_grad_(component.requires_grad()));
  }
  impl->is_copy_ = true;
  if (impl->distributed_) impl->strategy().extended().remember(Variable(impl));
  return impl;
}

Variable Variable::clone(std::string name) const {
  if (!is_distributed()) return Variable(Impl::copy(*impl_, name));
  switch (detail::variable_context(strategy(), "clone")) {
    case detail::VariableContext::CrossReplica: break;
    case detail::VariableContext::Update:
      throw FailedPrecondition(errors::kWrongContext,
                               {.what = "clone was called inside an update function, which runs once per component",
                                .where = lockstep::str("variable '", this->name(), "'"),
                                .help = "clone the variable outside of the function given to update"});
    case detail::VariableContext::Replica:
      return get_replica_context().merge_call(
          [&](Strategy&, const PerReplica<Variable>& all) {
            return Variable(Impl::copy(*detail::one_variable(&all[0], all.size(), "clone").impl(), name));
          },
          *this);
  }
  return Variable(Impl::copy(*impl_, name));
}

Strategy& Variable::Impl::strategy() const {
  if (!distributed_) return default_strategy();
  return detail::StrategyAccess::require_alive(strategy_, lockstep::str("variable '", options_.name, "'"));
}

const Strategy* Variable::Impl::strategy_if_alive() const {
  const auto alive = strategy_.lock();
  return alive ? *alive : nullptr;
}

Variable::Variable(at::Tensor initial_value, VariableOptions options)
    : Variable(Initializer([value = std::move(initial_value)] { return value; }), std::move(options)) {}

Variable::Variable(const Initializer& initializer, VariableOptions options)
    : impl_(create_here(initializer, options)) {}

const std::vector<at::Tensor>& Variable::values() const { return impl_->values(); }
const std::string& Variable::name() const { return impl_->options().name; }
std::string Variable::component_name(std::size_t k) const { return component_name_of(name(), k); }
at::ScalarType Variable::dtype() const { return values()[0].scalar_type(); }
at::IntArrayRef Variable::shape() const { return values()[0].sizes(); }
bool Variable::trainable() const { return *impl_->options().trainable; }
Synchronization Variable::synchronization() const { return impl_->options().synchronization; }
Aggregation Variable::aggregation() const { return impl_->options().aggregation; }
at::Tensor Variable::initial_value() const { return impl_->initial_value(); }
bool Variable::is_distributed() const { return impl_->is_distributed(); }
Strategy& Variable::strategy() const { return impl_->strategy(); }
bool Variable::is_initialized() const {
  for (const auto& component : values()) {
    if (!component.defined()) return false;
  }
  return true;
}

std::string canonical_variable_name(std::string_view name) {
  if (name.empty()) return "Variable";
  std::string result;
  for (std::size_t i = 0; i < name.size();) {
    const bool numbered = name[i] == '_' && i + 1 < name.size() &&
                          std::isdigit(static_cast<unsigned char>(name[i + 1])) &&
                          (i + 2 == name.size() || name[i + 2] == '/');
    if (numbered) {
      i += 2;
    } else {
      result += name[i++];
    }
  }
  return result;
}

StrategyExtended::ColocateScope::ColocateScope(const Variable& variable) : variable_(variable), outer_(colocated_with) {
  colocated_with = &variable_;
}
StrategyExtended::ColocateScope::~ColocateScope() { colocated_with = outer_; }

}  // namespace lockstep
