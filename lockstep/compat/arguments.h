#pragma once

#include <optional>
#include <tuple>
#include <type_traits>

#include "lockstep/strategy/detail/forward.h"

// TensorFlow bundles the arguments of a function: `run(fn, args=(a, b), kwargs={...})`. Here `args` is a std::tuple, and
// `kwargs` any one structure, which `fn` gets as its last argument: `run(fn, std::tuple{a, b}, Settings{...})`.
namespace lockstep::compat {

template <class T>
inline constexpr bool is_arguments_v = false;
template <class... T>
inline constexpr bool is_arguments_v<std::tuple<T...>> = true;

/// Calls `call(args..., kwargs)`, or `call(args...)` if kwargs is None.
template <class Call, class Args, class Kwargs>
decltype(auto) call_with(Call&& call, const Args& args, [[maybe_unused]] const Kwargs& kwargs) {
  static_assert(is_arguments_v<Args>, "positional args must be a list or tuple: write strategy.run(fn, std::tuple{x})");
  return std::apply(
      [&](const auto&... each) -> decltype(auto) {
        if constexpr (std::is_same_v<Kwargs, std::nullopt_t>)
          return call(each...);
        else
          return call(each..., kwargs);
      },
      args);
}

}  // namespace lockstep::compat
