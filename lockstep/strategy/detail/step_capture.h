#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/values/per_replica.h"
#include "lockstep/values/structure.h"

namespace lockstep {

class Strategy;

namespace detail {

/// What a captured step is called with.
struct StepInputs {
  const std::type_info* types = nullptr;
  std::vector<at::Tensor> tensors = {};
  std::vector<std::uint64_t> numbers = {};  ///< their bits
};

/// When a step runs plainly, when it is recorded and when repeated; captured_step.h has the rules.
class LOCKSTEP_EXPORT StepCapture {
 public:
  enum class Way { Run, Record, Replay };

  explicit StepCapture(Strategy& strategy);
  ~StepCapture();
  StepCapture(StepCapture&&) noexcept;
  StepCapture& operator=(StepCapture&&) noexcept;

  /// Throws if it is gone.
  Strategy& strategy() const;
  bool was_replayed() const;
  const std::string& reason() const;

  /// What a call with these inputs is to do.
  Way plan(const StepInputs& inputs);
  /// A call is a plain run, for this reason.
  void refuse(std::string reason);

  /// While it lives, a plain run goes on.
  class PlainRun;
  std::shared_ptr<PlainRun> plain_run();

  /// Where the graph reads its inputs.
  const std::vector<at::Tensor>& inputs() const;
  /// False: it cannot be recorded; nothing has been done. Throws what `run` throws of its own accord.
  bool record(const StepInputs& inputs, FunctionRef<void()> run);
  void replay(const StepInputs& inputs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

template <class T>
struct IsTensor : std::is_same<T, at::Tensor> {};
template <class T>
struct IsTensorOrNumber : std::bool_constant<std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T>> {};

template <template <class> class Is, class T>
constexpr bool all_leaves();
/// Whether all leaves of a T, also of its components, are what `Is` says. True for void.
template <template <class> class Is, class T>
inline constexpr bool all_leaves_v = all_leaves<Is, std::remove_cvref_t<T>>();

template <template <class> class Is, class T, std::size_t... I>
constexpr bool all_elements(std::index_sequence<I...>) {
  return (all_leaves_v<Is, std::tuple_element_t<I, T>> && ...);
}

template <template <class> class Is>
struct AllFields {
  template <class... Fields>
  std::bool_constant<(all_leaves_v<Is, Fields> && ...)> operator()(Fields&...) const {
    return {};
  }
};

template <template <class> class Is, class T>
constexpr bool all_leaves() {
  using enum StructureKind;
  if constexpr (std::is_void_v<T>) {
    return true;
  } else if constexpr (is_distributed_v<T>) {
    return all_leaves_v<Is, typename T::value_type>;
  } else {
    constexpr StructureKind kind = kind_v<T>;
    if constexpr (kind == Leaf)
      return Is<T>::value;
    else if constexpr (kind == Tuple)
      return all_elements<Is, T>(std::make_index_sequence<std::tuple_size_v<T>>());
    else if constexpr (kind == Map || kind == UnorderedMap)
      return all_leaves_v<Is, typename T::mapped_type>;
    else if constexpr (kind == Aggregate)
      return decltype(with_fields(std::declval<T&>(), AllFields<Is>()))::value;
    else if constexpr (kind == Custom)
      return false;
    else
      return all_leaves_v<Is, typename T::value_type>;
  }
}

/// Calls `see(leaf)` for each leaf, also of components.
template <class T, class See>
void for_each_of_all(const T& value, See& see) {
  for_each_leaf(value, [&]<class L>(const L& leaf) {
    if constexpr (is_distributed_v<L>) {
      for (const auto& component : leaf) for_each_of_all(component, see);
    } else {
      see(leaf);
    }
  });
}

template <class T, class See>
void for_each_tensor(const T& value, const See& see) {
  for_each_of_all(value, see);
}

LOCKSTEP_EXPORT void require_on_gpu(const at::Tensor& result);
LOCKSTEP_EXPORT at::Tensor copy_of_result(const at::Tensor& result);

template <class T>
void take_inputs(const T& value, StepInputs& inputs) {
  const auto take = [&]<class L>(const L& leaf) {
    if constexpr (std::is_same_v<L, at::Tensor>) {
      inputs.tensors.push_back(leaf);
    } else {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &leaf, std::min(sizeof leaf, sizeof bits));
      inputs.numbers.push_back(bits);
    }
  };
  for_each_of_all(value, take);
}

/// The same structure with `change(tensor)` in place of each tensor, in the order of `for_each_of_all`.
template <class T, class Change>
T change_tensors(const T& value, Change& change) {
  const auto of_leaf = [&]<class L>(const L& leaf) -> L {
    if constexpr (std::is_same_v<L, at::Tensor>) {
      return change(leaf);
    } else if constexpr (is_distributed_v<L>) {
      L changed = leaf;
      for (auto& component : changed) component = change_tensors(component, change);
      return changed;
    } else {
      return leaf;
    }
  };
  return map_structure(of_leaf, value);
}

template <class T>
T replace_tensors(const T& value, const std::vector<at::Tensor>& by, std::size_t& next) {
  const auto take = [&](const at::Tensor&) { return by[next++]; };
  return change_tensors(value, take);
}

template <class T>
T copy_tensors(const T& value) {
  return change_tensors(value, copy_of_result);
}

}  // namespace detail
}  // namespace lockstep
