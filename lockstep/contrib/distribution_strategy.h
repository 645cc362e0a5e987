#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/contrib/client_call.h"
#include "lockstep/contrib/multi_step_context.h"
#include "lockstep/contrib/tower_context.h"
#include "lockstep/contrib/tower_dataset.h"
#include "lockstep/contrib/tower_local_variable.h"
#include "lockstep/contrib/tower_values.h"
#include "lockstep/contrib/tower_words.h"
#include "lockstep/contrib/variable_aggregation.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib {

/// The last argument of `call_for_each_tower`: whether towers run at the same time, which is the default. Otherwise
/// each runs up to its next merge point before the next tower does.
struct RunConcurrently {
  bool value = true;  ///< false: in turn
};
/// How towers work.
inline constexpr RunConcurrently run_concurrently{true}, run_in_turn{false};

/// The last argument of `update` and `update_non_slot` to get their results as a list (`grouped=False` in TensorFlow).
struct Ungrouped {};
/// Asks for results as a list.
inline constexpr Ungrouped ungrouped{};

namespace detail {

/// Calls `f(tag, args...)`: `tag` is the last argument if that is a Tag, otherwise nullopt.
template <class Tag, class F, class... Args>
decltype(auto) with_tag(F&& f, const Args&... args) {
  if constexpr (std::is_same_v<Tag, std::tuple_element_t<sizeof...(Args), std::tuple<void*, Args...>>>) {
    const auto all = std::tie(args...);
    return [&]<std::size_t... I>(std::index_sequence<I...>)->decltype(auto) {
      return f(std::get<sizeof...(Args) - 1>(all), std::get<I>(all)...);
    }
    (std::make_index_sequence<sizeof...(Args) - 1>{});
  } else {
    return f(std::nullopt, args...);
  }
}

}  // namespace detail

/// Common base of the strategies of TensorFlow 1.11's `contrib.distribute`. A class on top of a Lockstep strategy,
/// which `core()` returns for the rest of the main API: models, optimizers, saving.
///
/// Over a cluster (`configure`) every worker runs the same program for its own towers. A PerDevice has the components
/// of these; `unwrap`, `reduce`, results of map and step outputs include the other workers' towers: the program sees
/// all towers wherever it runs. Such calls are collective. Merge functions and side effects of the program happen once
/// per worker.
class LOCKSTEP_EXPORT DistributionStrategy {
 public:
  virtual ~DistributionStrategy();
  DistributionStrategy(const DistributionStrategy&) = delete;
  DistributionStrategy& operator=(const DistributionStrategy&) = delete;

  /// The strategy of the main API underneath.
  Strategy& core() const { return *core_; }
  /// Makes this the current strategy until the result is destroyed.
  Scope scope() {
    const detail::TowerWords words;
    return Scope(*core_);
  }

  /// How many towers there are, over all workers.
  int num_towers() const { return core_->num_replicas_in_sync(); }
  bool is_single_tower() const { return num_towers() == 1; }
  /// Whether each worker runs the program itself.
  virtual bool between_graph() const { return false; }
  /// Whether this worker initialises variables: always.
  bool should_init() const { return true; }
  /// True only on the first worker.
  bool should_checkpoint() const { return core_->is_chief(); }
  bool should_save_summary() const { return core_->is_chief(); }
  /// The devices of all towers of all workers, in tower order; the two are the same.
  const Devices& worker_devices() const { return devices_; }
  const Devices& parameter_devices() const { return devices_; }
  /// The number of each tower; inside a tower its own.
  PerDevice<int> worker_device_index() const;
  // No-ops, kept for programs that call them.
  void initialize() const {}
  void finalize() const {}
  /// Does nothing: values exist only once their dependencies have run.
  template <class... Values>
  void group(const Values&...) const {}

  /// Calls `f(args...)` once per tower, with the tower's own component of distributed arguments.
  ///
  ///     auto losses = strategy.call_for_each_tower(step, batch);
  ///     auto losses = strategy.call_for_each_tower(step, batch, contrib::run_in_turn);
  template <class F, class... Args>
  auto call_for_each_tower(F&& f, const Args&... args);

  /// The values of all towers as a list, in tower order; a plain value as a list of one.
  template <class T>
  auto unwrap(const T& value, const std::source_location& where = std::source_location::current()) const;

  /// The component of a tower of this worker, by the name of its device.
  template <class T>
  T get(const PerDevice<T>& value, const std::string& device) const {
    return value[index_of(device, core_->devices(), "get")];
  }

  /// The towers' values reduced to one, on several devices, where the components of a value or variable are, or on all
  /// towers' devices. For results of `map`, MEAN divides by the number of items. Sparse rows are concatenated.
  Mirrored<at::Tensor> reduce(VariableAggregation aggregation, const TowerValue& value,
                              const TowerDestinations& destinations = {},
                              const std::source_location& where = std::source_location::current());
  Mirrored<IndexedSlices> reduce(VariableAggregation aggregation, const PerDevice<IndexedSlices>& value,
                                 const TowerDestinations& destinations = {},
                                 const std::source_location& where = std::source_location::current());
  template <class T, class... Rest>
    requires(!detail::is_reducible_v<T>)
  auto reduce(VariableAggregation, const T&, const Rest&...) {
    static_assert(lockstep::detail::never<T>,
                  "reduce takes a tensor or number of each tower: reduce the parts of a structure one by one, "
                  "lockstep::get<0>(value), or return them one by one");
    return lockstep::detail::AfterCompileError();
  }
  /// The same on one device, as a plain value.
  template <class Value, std::convertible_to<std::string> Device>
    requires detail::is_reducible_v<Value>
  auto reduce(VariableAggregation aggregation, const Value& value, const Device& device,
              const std::source_location& where = std::source_location::current()) {
    return reduce(aggregation, value, TowerDestinations(std::string(device)), where)[0];
  }

  using ReducePair = std::pair<TowerValue, TowerDestinations>;  ///< a value and the devices that its sum goes to
  using SparseReducePair = std::pair<PerDevice<IndexedSlices>, TowerDestinations>;  ///< the same for sparse rows
  /// Reduces several values at once.
  std::vector<Mirrored<at::Tensor>> batch_reduce(VariableAggregation aggregation, const std::vector<ReducePair>& pairs,
                                                 const std::source_location& where = std::source_location::current());
  std::vector<Mirrored<at::Tensor>> batch_reduce(VariableAggregation aggregation,
                                                 std::initializer_list<ReducePair> pairs,
                                                 const std::source_location& where = std::source_location::current()) {
    return batch_reduce(aggregation, std::vector(pairs), where);
  }
  std::vector<Mirrored<IndexedSlices>> batch_reduce(
      VariableAggregation aggregation, const std::vector<SparseReducePair>& pairs,
      const std::source_location& where = std::source_location::current());

  /// A copy for each destination, or for each tower.
  Mirrored<at::Tensor> broadcast(const TowerValue& value, const TowerDestinations& destinations = {});

  /// Calls `f(item, args...)` for each item, item i on device i mod n. For mirrored arguments passes that device's
  /// component.
  template <class T, class F, class... Args>
  auto map(const std::vector<T>& map_over, F&& f, const Args&... args);

  /// The elements of `dataset_fn()` go to the towers in turn, whole: with batches of b rows a step has n * b. Over a
  /// cluster every worker reads the same stream and takes its own towers' elements; with `between_graph` each reads its
  /// own stream.
  template <class F>
  auto distribute_dataset(F&& dataset_fn) {
    if constexpr (detail::GivesDataset<F>) {
      const detail::CrossTowerCall client(*core_, "distribute_dataset");
      note_use();
      return detail::distribute_elements(*core_, dataset_fn(), between_graph(), prefetch_on_device_);
    } else {
      static_assert(lockstep::detail::never<F>,
                    "distribute_dataset takes a function that returns a Dataset: [&] { return dataset; }");
      return lockstep::detail::AfterCompileError();
    }
  }

  /// Calls `f(context, inputs...)` for `iterations` elements of `iterator`, in cross-tower context. `f` gets one
  /// PerDevice, or one per part of elements that are pairs or tuples. `initial_loop_values`: none, or one per tensor of
  /// the last-step outputs; they are not used.
  template <class F, class T>
  MultiStepContext run_steps_on_dataset(F f, TowerIterator<T>& iterator, int iterations = 1,
                                        const std::vector<at::Tensor>& initial_loop_values = {});

  /// Calls `f(component, args...)` for each component of `variable`; arguments are mirrored or plain. A variable that
  /// is not distributed is updated once. A component that `f` returns is copied.
  template <class F, class... Args>
  auto update(const Variable& variable, F&& f, const Args&... args);
  /// Calls `f(args...)` for each of the devices, some of `worker_devices`, on the worker that has it, with the
  /// component on that device of mirrored arguments.
  template <class F, class... Args>
  auto update_non_slot(const Devices& colocate_with, F&& f, const Args&... args);
  Devices non_slot_devices(const std::vector<Variable>&) const { return devices_; }

  /// A copy of the value: inside a tower of its own component, elsewhere the sum, mean or first of tower-local ones.
  at::Tensor read_var(const Variable& variable) const {
    const detail::TowerWords words;
    return variable.read().clone();
  }
  /// The variable of which `component` is a part, if it is one of this strategy's.
  std::optional<Variable> value_container(const at::Tensor& component) const {
    return core_->extended().value_container(component);
  }
  /// While the result exists, new variables have their components where `variable` has its own.
  StrategyExtended::ColocateScope colocate_vars_with(const Variable& variable) {
    const detail::TowerWords words;
    return core_->extended().colocate_vars_with(variable);
  }
  /// Inside a tower all of them create it together.
  TowerLocalVariable tower_local_variable(const at::Tensor& initial_value,
                                          VariableAggregation aggregation = VariableAggregation::NONE,
                                          const std::string& name = "");

 protected:
  DistributionStrategy() = default;
  /// Replaces the core; `devices` are all towers' devices.
  void set_core(std::unique_ptr<Strategy> core, Devices devices);
  void set_prefetch_on_device(bool prefetch) { prefetch_on_device_ = prefetch; }
  bool is_used() const;  ///< by towers, datasets, variables or models, which belong to its present core

 private:
  static std::size_t index_of(const std::string& device, const Devices& among, const char* operation);
  /// For devices that are named once each.
  std::vector<std::size_t> towers_of(const Devices& devices, const char* operation) const;
  /// The results of `update(args...)`: a list over all towers if the last argument is `ungrouped`.
  template <class Update, class... Args>
  auto grouped_or_not(const Update& update, const Args&... args) const;
  friend int detail::count_merge(const Strategy& core, const std::type_info& function);
  /// Warns, the first time, of workers that the program has not joined.
  void note_use();
  /// Throws on all workers unless their towers called the same function and made the same merge calls: the towers of
  /// one worker may have finished without a call that others wait in.
  void require_equal_calls(const std::type_info& function) const;
  /// The tower whose component is being updated; outside of updates the first of this worker.
  std::size_t this_tower() const;
  /// Results that may differ between towers, from all workers: used as one value they are the first tower's everywhere.
  template <class T>
  Mirrored<T> of_all_towers(const Mirrored<T>& own) const;
  template <class T, class F, class... Args>
  auto map_items(const std::vector<T>& map_over, F& f, const Args&... args);
  template <class F, class... Args>
  auto update_grouped(const Variable& variable, F& f, const Args&... args);
  template <class F, class... Args>
  auto update_devices(const Devices& devices, F& f, const Args&... args);

  std::unique_ptr<Strategy> core_;
  Devices devices_;
  bool prefetch_on_device_ = true;
  int merges_ = 0;                      ///< merge calls so far
  std::uint64_t merged_functions_ = 0;  ///< a digest of their functions
  bool is_used_ = false;
  bool is_configured_ = false;  ///< for a cluster: its core is the second one
  int calls_ = 0;               ///< calls of map, update and update_non_slot so far
};

}  // namespace lockstep::contrib

#include "lockstep/contrib/detail/distribution_strategy_templates.h"
