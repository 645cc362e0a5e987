#pragma once

#include <c10/core/GradMode.h>

#include <concepts>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/contrib/distribution_strategy.h"
#include "lockstep/strategy/detail/in_turn.h"

// The bodies of distribution_strategy.h's templates.
namespace lockstep::contrib {

namespace detail {

template <class... Args>
void require_on_devices(const char* operation, const Devices& devices, const Args&... args) {
  [[maybe_unused]] const auto check = [&](const char*, std::size_t, const Placement* placed = nullptr) {
    if (placed != nullptr) require_on(operation, *placed, devices);
  };
  (for_each_distributed(args, check), ...);
}

/// Throws unless all arguments, and their elements, are plain or mirrored on these devices.
template <class... Args>
void require_mirrored(const char* operation, const Devices& devices, const Args&... args) {
  [[maybe_unused]] const auto check = [&]<class T>(const T& leaf) {
    bool is_per_tower = lockstep::detail::is_per_replica_v<T>;
    if constexpr (is_of_variable_v<T> || std::is_same_v<T, TowerValue>)
      is_per_tower = TowerValue(leaf).kind() >= TowerValue::Kind::PerDevice;
    if (is_per_tower) throw_not_mirrored(operation);
  };
  (for_each_leaf(args, check), ...);
  require_on_devices(operation, devices, args...);
}

/// Whether an argument has components on named devices, which may differ.
template <class... Args>
bool is_on_several_devices(const Args&... args) {
  bool is_so = false;
  [[maybe_unused]] const auto look = [&](const char*, std::size_t, const Placement* placed = nullptr) {
    is_so = is_so || (placed != nullptr && placed->devices.size() > 1);
  };
  (for_each_distributed(args, look), ...);
  return is_so;
}

/// A copy of the result of a program's function: a component that it returns changes later, while other workers' copies
/// do not.
template <class F, class... Args>
auto copied_result(F& f, const Args&... args) {
  if constexpr (std::is_void_v<decltype(f(args...))>)
    f(args...);
  else
    return copied(std::decay_t<decltype(f(args...))>(f(args...)));
}

/// Tower k's view of an argument on this worker: of a variable its own component, as a tensor.
template <class T>
decltype(auto) component_on(const T& argument, int k) {
  if constexpr (std::derived_from<T, Variable>)
    return argument.is_distributed() ? at::Tensor(argument.values()[static_cast<std::size_t>(k)]) : argument.read();
  else
    return select_component(argument, k);
}

}  // namespace detail

template <class F, class... Args>
auto DistributionStrategy::call_for_each_tower(F&& f, const Args&... args) {
  const detail::CrossTowerCall client(*core_, "call_for_each_tower");
  detail::require_on_devices("call_for_each_tower", devices_, args...);
  note_use();
  return detail::with_tag<RunConcurrently>(
      [&](const std::optional<RunConcurrently>& concurrently, const auto&... given) {
        const lockstep::detail::InTurn in_turn(concurrently && !concurrently->value);
        if constexpr (!std::is_invocable_v<F&, decltype(select_component(given, 0))...>) {
          static_assert(
              lockstep::detail::never<F>,
              "call_for_each_tower(f, args...) cannot call f with these arguments: f gets a `const T&` for each of "
              "them, for a PerDevice<T> or Mirrored<T> the tower's own T");
          return lockstep::detail::AfterCompileError();
        } else if constexpr (std::is_void_v<decltype(core_->run(f, given...))>) {
          core_->run(f, given...);
          require_equal_calls(typeid(F));
        } else {
          auto results = core_->run(f, given...);
          require_equal_calls(typeid(F));
          return results;
        }
      },
      args...);
}

template <class T>
auto DistributionStrategy::unwrap(const T& value, const std::source_location& where) const {
  const detail::CrossTowerCall client(*core_, "unwrap");
  const lockstep::detail::CallPlace place(where);
  if constexpr (!detail::is_of_variable_v<T> && requires { value.whole_size(); })
    detail::require_of_all_towers(*core_, "unwrap", value.size());
  if constexpr (detail::is_of_variable_v<T>) {
    return TowerValue(value).copied().unwrap(*core_, devices_);
  } else if constexpr (std::is_same_v<T, TowerValue>) {
    return (core_->num_workers() == 1 ? value.copied() : value).unwrap(*core_, devices_);
  } else if constexpr (requires { detail::all_outputs(*core_, value); }) {
    return detail::all_outputs(*core_, value);
  } else if constexpr (std::is_same_v<T, PerDevice<const char*>>) {
    return unwrap(value.map([](const char* text) { return std::string(text); }), where);
  } else if constexpr (is_distributed_v<T>) {
    auto all = lockstep::detail::components_of_all(*core_, devices_, value);
    return core_->num_workers() == 1 ? detail::copied(std::move(all)) : all;
  } else {
    return std::vector<T>{value};
  }
}

template <class T, class F, class... Args>
auto DistributionStrategy::map(const std::vector<T>& map_over, F&& f, const Args&... args) {
  constexpr auto kHasResult = []<class... Given>(std::type_identity<Given>...) {
    if constexpr (std::is_invocable_v<F&, const T&, Given...>)
      return !std::is_void_v<std::invoke_result_t<F&, const T&, Given...>>;
    return false;
  };
  if constexpr (kHasResult(std::type_identity<decltype(select_component(args, 0))>()...)) {
    return map_items(map_over, f, args...);
  } else {
    static_assert(lockstep::detail::never<F>, "map(items, f, args...) calls f(item, args...), which returns a result");
    return lockstep::detail::AfterCompileError();
  }
}

template <class T, class F, class... Args>
auto DistributionStrategy::map_items(const std::vector<T>& map_over, F& f, const Args&... args) {
  using Result = std::decay_t<std::invoke_result_t<F&, const T&, decltype(select_component(args, 0))...>>;
  const detail::CrossTowerCall client(*core_, "map");
  detail::require_mirrored("map", devices_, args...);
  const auto here = static_cast<std::size_t>(core_->num_local_replicas());
  const auto first = here * static_cast<std::size_t>(core_->worker_id());
  std::vector<MapOutput<Result>> outputs(here);
  const detail::ClientCall call(*core_, "map", typeid(F), ++calls_);
  call.on_all_workers([&] {
    const Scope scope(*core_);
    for (std::size_t i = 0; i < map_over.size(); ++i) {
      const std::size_t tower = i % static_cast<std::size_t>(num_towers());
      if (tower < first || tower >= first + here) continue;
      const auto k = static_cast<int>(tower - first);
      const detail::ClientRandom random = call.random_for(i);
      if constexpr (std::is_invocable_v<F&, const T&, decltype(detail::component_on(args, 0))...>)
        outputs[tower - first].add(f(map_over[i], detail::component_on(args, k)...));
      else
        outputs[tower - first].add(f(map_over[i], select_component(args, k)...));
    }
  });
  return detail::of_towers(*core_, PerDevice<MapOutput<Result>>(std::move(outputs)));
}

template <class F, class T>
MultiStepContext DistributionStrategy::run_steps_on_dataset(F f, TowerIterator<T>& iterator, int iterations,
                                                            const std::vector<at::Tensor>& initial_loop_values) {
  const detail::CrossTowerCall client(*core_, "run_steps_on_dataset");
  auto step = [f = std::move(f), iterator](MultiStepContext& context) mutable {
    if constexpr (std::is_invocable_v<F&, MultiStepContext&, PerDevice<T>>) {
      f(context, iterator.get_next());
    } else if constexpr (lockstep::detail::TupleLike<T>) {
      const PerDevice<T> inputs = iterator.get_next();
      [&]<std::size_t... I>(std::index_sequence<I...>) { f(context, lockstep::get<I>(inputs)...); }
      (std::make_index_sequence<std::tuple_size_v<T>>{});
    } else {
      static_assert(lockstep::detail::never<F>,
                    "run_steps_on_dataset(f, iterator) calls f(contrib::MultiStepContext&, contrib::PerDevice<T>), or "
                    "with a PerDevice for each part of elements that are pairs or tuples");
    }
  };
  return MultiStepContext::run(*core_, devices_, std::move(step), iterations, initial_loop_values.size());
}

template <class T>
Mirrored<T> DistributionStrategy::of_all_towers(const Mirrored<T>& own) const {
  if (core_->num_workers() == 1) return own;
  Mirrored<T> all(lockstep::detail::components_of_all(*core_, devices_, own));
  all.set_placement(place_on(devices_, core_->devices()));
  return all;
}

template <class F, class... Args>
auto DistributionStrategy::update_grouped(const Variable& variable, F& f, const Args&... args) {
  detail::require_mirrored("update", devices_, args...);
  const bool is_tower_local = variable.is_distributed() && variable.synchronization() == Synchronization::OnRead;
  const detail::ClientCall call(*core_, "update", typeid(F), ++calls_);
  const auto update_one = [&](const at::Tensor& component, const auto&... given) {
    // Mirrored components draw the same numbers, so that they stay equal.
    const detail::ClientRandom random = call.random_for(is_tower_local ? this_tower() : 0);
    return detail::copied_result(f, component, given...);
  };
  using Result = decltype(core_->extended().update(variable, update_one, args...));
  if (variable.is_distributed()) {
    if constexpr (std::is_void_v<Result>) {
      return call.on_all_workers([&] { core_->extended().update(variable, update_one, args...); });
    } else {
      std::optional<Result> result;
      call.on_all_workers([&] { result = core_->extended().update(variable, update_one, args...); });
      const bool may_differ = is_tower_local || detail::is_on_several_devices(args...);
      return may_differ ? of_all_towers(*result) : *std::move(result);
    }
  }
  const c10::AutoGradMode no_grad(false);  // as for the components of a distributed one
  if constexpr (std::is_void_v<Result>) {
    update_one(variable.read(), select_component(args, 0)...);
  } else {
    Result result({update_one(variable.read(), select_component(args, 0)...)});
    result.set_placement(place_on({devices_[0]}, core_->devices()));  // on one device, whatever the number of towers
    return result;
  }
}

template <class Update, class... Args>
auto DistributionStrategy::grouped_or_not(const Update& update, const Args&... args) const {
  return detail::with_tag<Ungrouped>(
      [&](const auto& tag, const auto&... given) {
        if constexpr (std::is_same_v<decltype(tag), const Ungrouped&> && !std::is_void_v<decltype(update(given...))>)
          return unwrap(update(given...));
        else
          return update(given...);
      },
      args...);
}

template <class F, class... Args>
auto DistributionStrategy::update(const Variable& variable, F&& f, const Args&... args) {
  const detail::CrossTowerCall client(*core_, "update");
  return grouped_or_not(
      [&](const auto&... given) {
        if constexpr (std::is_invocable_v<F&, const at::Tensor&,
                                          decltype(select_component(detail::one_of_variable(given), 0))...>) {
          return update_grouped(variable, f, detail::one_of_variable(given)...);
        } else {
          static_assert(lockstep::detail::never<F>, "update(variable, f, args...) calls f(component, args...)");
          return lockstep::detail::AfterCompileError();
        }
      },
      args...);
}

template <class F, class... Args>
auto DistributionStrategy::update_devices(const Devices& devices, F& f, const Args&... args) {
  using Result = std::decay_t<std::invoke_result_t<F&, decltype(select_component(args, 0))...>>;
  const std::vector<std::size_t> towers = towers_of(devices, "update_non_slot");
  const auto here = static_cast<std::size_t>(core_->num_local_replicas());
  const auto worker = static_cast<std::size_t>(core_->worker_id());
  Devices names, own;
  for (const std::size_t tower : towers) {
    names.push_back(devices_[tower]);
    if (tower / here == worker) own.push_back(devices_[tower]);
  }
  detail::require_mirrored("update_non_slot", names, args...);
  const detail::ClientCall call(*core_, "update_non_slot", typeid(F), ++calls_);
  const auto update_one = [&](const auto&... given) {
    const detail::ClientRandom random = call.random_for(this_tower());
    return detail::copied_result(f, given...);
  };
  const auto update_own = [&] { return core_->extended().update_non_slot(own, update_one, args...); };
  if constexpr (std::is_void_v<Result>) {
    call.on_all_workers([&] {
      if (!own.empty()) update_own();
    });
  } else {
    if (core_->num_workers() == 1) return update_own();
    std::vector<std::vector<Result>> lists(here);
    call.on_all_workers([&] {
      if (own.empty()) return;
      const auto results = update_own();
      auto result = results.begin();
      for (const std::size_t tower : towers)
        if (tower / here == worker) lists[tower % here].push_back(*result++);
    });
    lists = lockstep::detail::lists_of_all_replicas(*core_, lists);
    const auto of = [&](std::size_t k) -> Result { return lists[towers[k]].at(0); };
    auto all = Mirrored<Result>::generate(towers.size(), of);
    all.set_placement(place_on(std::move(names), core_->devices()));
    return all;
  }
}

template <class F, class... Args>
auto DistributionStrategy::update_non_slot(const Devices& colocate_with, F&& f, const Args&... args) {
  const detail::CrossTowerCall client(*core_, "update_non_slot");
  return grouped_or_not(
      [&](const auto&... given) {
        if constexpr (std::is_invocable_v<F&, decltype(select_component(detail::one_of_variable(given), 0))...>) {
          return update_devices(colocate_with, f, detail::one_of_variable(given)...);
        } else {
          static_assert(lockstep::detail::never<F>, "update_non_slot(devices, f, args...) calls f(args...)");
          return lockstep::detail::AfterCompileError();
        }
      },
      args...);
}

}  // namespace lockstep::contrib
