#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/variable_rules.h"
#include "lockstep/values/print.h"

// What may be assigned to a variable, and which component gets which tensor of it.
namespace lockstep {

void detail::throw_assign(const Variable::Impl& variable, std::string what, std::string help) {
  throw InvalidArgument(errors::kVariableAssign, {.what = std::move(what),
                                                  .where = lockstep::str("variable '", variable.options().name, "'"),
                                                  .help = std::move(help)});
}

VariableValue::VariableValue(const Variable& variable) : kind_(Kind::Tensor), tensor_(variable) {}
VariableValue::VariableValue(const VariableSlice& slice) : kind_(Kind::Tensor), tensor_(slice) {}
VariableValue::VariableValue(PerReplica<at::Tensor> value)
    : kind_(Kind::PerReplica), components_(std::move(value).values()) {}
VariableValue::VariableValue(Mirrored<at::Tensor> value) : kind_(Kind::Mirrored), placement_(value.placement()) {
  components_ = std::move(value).values();
}

namespace {

using Kind = VariableValue::Kind;

at::Tensor literal_tensor(const Variable::Impl& variable, const c10::Scalar& literal) {
  const auto dtype = variable.values()[0].scalar_type();
  const bool to_integer = at::isIntegralType(dtype, /*includeBool=*/true);
  const bool fraction = literal.isFloatingPoint() && literal.toDouble() != std::trunc(literal.toDouble());  // NaN too
  try {
    if (!(to_integer && fraction))
      return at::scalar_tensor(literal, variable.values()[0].options().requires_grad(false));
  } catch (const std::exception&) {  // LibTorch's way to say that the number is out of range
  }
  throw InvalidArgument(
      errors::kDtype,
      {.what = lockstep::str("the number ", literal, " does not fit into a variable of ", dtype_name(dtype)),
       .where = lockstep::str("variable '", variable.options().name, "'"),
       .help = "assign a number that this dtype can hold, or a tensor of this dtype"});
}

}  // namespace

at::Tensor detail::target_of(const Variable::Impl& variable, const Write& write, std::size_t k) {
  const at::Tensor& component = variable.values()[k];
  return write.place ? detail::part_of(component.detach(), write.place.get()) : component;
}

at::Tensor detail::value_for(const Variable::Impl& variable, const Write& write, const VariableValue& value,
                             std::size_t k) {
  if (value.kind() == Kind::Tensor) return value.tensor();
  if (value.kind() == Kind::Number) {
    const at::Tensor number = literal_tensor(variable, value.number());
    return write.place ? number.expand(target_of(variable, write).sizes()) : number;
  }
  if (const Placement* const placed = value.placement()) {
    if (variable.is_distributed()) variable_rules(variable.strategy()).require_placed(variable, *placed);
    const std::size_t found = placed->component_of(static_cast<int>(k));
    if (found == value.components().size()) detail::throw_not_placed(*placed, static_cast<int>(k));
    return value.components()[found];
  }
  if (k >= value.components().size()) {
    detail::throw_component_out_of_range(value.kind() == Kind::Mirrored ? "Mirrored" : "PerReplica", k,
                                         value.components().size());
  }
  return value.components()[k];
}

void detail::require_defined(const Variable::Impl& variable, const at::Tensor& value) {
  if (!value.defined())
    throw_assign(variable, "an undefined tensor cannot be assigned", "pass a tensor of the variable's shape");
}

at::Tensor detail::brought_to(const Variable::Impl& variable, const at::Tensor& value, at::Device device) {
  const bool is_mixed =
      variable.is_distributed() && StrategyAccess::device_kinds(variable.strategy()) == DeviceKinds::Mixed;
  const bool may_be_brought = value.defined() && (value.is_cpu() == device.is_cpu() || is_mixed);
  return may_be_brought ? gpu::bring_here(value, device) : value;
}

void detail::require_fitting(const Variable::Impl& variable, const at::Tensor& component, const at::Tensor& value) {
  require_defined(variable, value);
  if (value.layout() != component.layout() || value.device() != component.device()) {
    throw InvalidArgument(errors::kDevice,
                          {.what = "device or layout of the value differ from the variable's",
                           .where = lockstep::str("variable '", variable.options().name, "'"),
                           .seen = lockstep::str("variable ", component.device(), ", ", component.layout(), "; value ",
                                                 value.device(), ", ", value.layout()),
                           .help = "convert it with .to(variable.device()) or to_dense()"});
  }
  if (value.sizes() != component.sizes()) {
    throw InvalidArgument(errors::kShape,
                          {.what = "Shape mismatch: the value's shape differs from the variable's",
                           .where = lockstep::str("variable '", variable.options().name, "'"),
                           .seen = lockstep::str("variable ", component.sizes(), ", value ", value.sizes()),
                           .help = "expand or reshape the value"});
  }
  if (value.scalar_type() != component.scalar_type()) {
    throw InvalidArgument(errors::kDtype,
                          {.what = lockstep::str("the value must be ", dtype_name(component.scalar_type()), ", got ",
                                                 dtype_name(value.scalar_type())),
                           .where = lockstep::str("variable '", variable.options().name, "'"),
                           .help = "convert it with .to(variable.dtype())"});
  }
}

bool detail::lies_in(const at::Tensor& tensor, const Variable::Impl& variable) {
  if (!tensor.has_storage()) return false;  // sparse
  for (const auto& component : variable.values()) {
    if (component.has_storage() && tensor.is_alias_of(component)) return true;
  }
  return false;
}

at::Tensor detail::given_to(const Variable::Impl& variable, const Write& write, const VariableValue& value,
                            std::size_t k) {
  const at::Tensor target = target_of(variable, write, k);
  const at::Tensor given = brought_to(variable, value_for(variable, write, value, k), target.device());
  require_fitting(variable, target, given);
  return lies_in(given, variable) ? given.clone() : given;
}

std::vector<at::Tensor> detail::given_to_all(const Variable::Impl& variable, const Write& write,
                                             const VariableValue& value) {
  std::vector<at::Tensor> given;
  for (std::size_t k = 0; k < variable.values().size(); ++k) given.push_back(given_to(variable, write, value, k));
  return given;
}

void detail::apply(const Write& write, at::Tensor& component, const at::Tensor& given) {
  const auto change_by_given = [&](at::Tensor& target) { change(write.change, target, given); };
  write.place ? change_part(component, *write.place, change_by_given) : change_by_given(component);
}

}  // namespace lockstep
