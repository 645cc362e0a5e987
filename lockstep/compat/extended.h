#pragma once

#include <initializer_list>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/compat/arguments.h"
#include "lockstep/compat/held_strategy.h"
#include "lockstep/compat/names.h"
#include "lockstep/strategy/extended.h"

namespace lockstep::compat {

/// `strategy.extended()` with the names common to all TensorFlow versions; v1::StrategyExtended adds TensorFlow 1's.
class ExtendedHandle {
 public:
  explicit ExtendedHandle(lockstep::Strategy& core) : core_(core) {}

  /// Runs `fn(args..., kwargs)` on each replica, as `run` does.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t>
  auto call_for_each_replica(F&& fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt) const {
    return call_with([&](const auto&... each) { return own()->run(fn, each...); }, args, kwargs);
  }

  /// Reduces a value to devices, as `StrategyExtended::reduce_to` does.
  template <class T>
  auto reduce_to(names::ReduceOp op, const T& value, const Destinations& destinations,
                 const CommunicationOptions& options = {}) const {
    return own()->extended().reduce_to(op, value, destinations, options);
  }

  using ReducePair = lockstep::StrategyExtended::ReducePair;  ///< a value and the devices that its sum goes to
  /// Reduces several values at once.
  template <class Pair>
  auto batch_reduce_to(names::ReduceOp op, const std::vector<Pair>& value_destination_pairs,
                       const CommunicationOptions& options = {}) const {
    return own()->extended().batch_reduce_to(op, value_destination_pairs, options);
  }
  auto batch_reduce_to(names::ReduceOp op, std::initializer_list<ReducePair> value_destination_pairs,
                       const CommunicationOptions& options = {}) const {
    return own()->extended().batch_reduce_to(op, value_destination_pairs, options);
  }

  /// Calls `fn(component, args..., kwargs)` for each local component. `group` as a type, since the result's type
  /// depends on it: std::false_type{} returns a list with a result per component, anything else a Mirrored.
  template <class F, class Args = std::tuple<>, class Kwargs = std::nullopt_t, bool kGroup = true>
  auto update(const Variable& var, F&& fn, const Args& args = {}, const Kwargs& kwargs = std::nullopt,
              std::bool_constant<kGroup> = {}) const {
    return grouped<kGroup>([&] {
      const auto call = [&](const auto&... each) { return own()->extended().update(var, fn, each...); };
      return call_with(call, args, kwargs);
    });
  }

  /// As `StrategyExtended` has them.
  auto colocate_vars_with(const Variable& colocate_with_variable) const {
    return own()->extended().colocate_vars_with(colocate_with_variable);
  }
  bool variable_created_in_scope(const Variable& v) const { return extended().variable_created_in_scope(v); }

  /// The variable of which `value` is a component, otherwise `value` itself.
  std::variant<at::Tensor, Variable> value_container(const at::Tensor& value) const {
    if (const auto variable = extended().value_container(value)) return *variable;
    return value;
  }
  template <class T>
  T value_container(const T& value) const {
    return value;
  }

  /// As `StrategyExtended` has them.
  const Devices& parameter_devices() const { return extended().parameter_devices(); }
  const Devices& worker_devices() const { return extended().worker_devices(); }
  bool experimental_between_graph() const { return extended().experimental_between_graph(); }
  bool experimental_require_static_shapes() const { return extended().experimental_require_static_shapes(); }
  bool experimental_should_init() const { return extended().experimental_should_init(); }
  bool should_checkpoint() const { return extended().should_checkpoint(); }
  bool should_save_summary() const { return extended().should_save_summary(); }

  /// As in the strategy; `session` is ignored, because there are none.
  template <class T, class Session = std::nullopt_t>
  auto experimental_make_numpy_dataset(T numpy_input, const Session& = std::nullopt) const {
    return own()->make_numpy_dataset(std::move(numpy_input));
  }

 protected:
  lockstep::Strategy& core() const { return core_.get(); }
  SpeakingStrategy own() const { return SpeakingStrategy(core()); }
  lockstep::StrategyExtended& extended() const { return core().extended(); }

  template <bool kGroup, class Update>
  static auto grouped(const Update& update) {
    if constexpr (kGroup || std::is_void_v<decltype(update())>)
      return update();
    else
      return update().release();
  }

 private:
  HeldStrategy core_;
};

}  // namespace lockstep::compat
