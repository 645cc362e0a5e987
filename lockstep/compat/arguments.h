#pragma once

#include <optional>
#include <tuple>
#include <type_traits>

#include "lockstep/compat/names.h"
#include "lockstep/strategy/detail/forward.h"

// TensorFlow bundles the arguments of a function: `run(fn, args=(a, b), kwargs={...})`. Here `args` is a std::tuple,
// and `kwargs` any one structure, passed to `fn` as its last argument: `run(fn, std::tuple{a, b}, Settings{...})`. A
// pair or tuple as the only argument needs `std::make_tuple(pair)`: C++ treats `std::tuple{pair}` as a copy of the
// pair.
namespace lockstep::compat {

/// Whether `T` is a tuple of arguments.
template <class T>
inline constexpr bool is_arguments_v = false;
template <class... T>
inline constexpr bool is_arguments_v<std::tuple<T...>> = true;

/// Nothing, or RunOptions if `run(fn, args, options=...)` omits the kwargs.
template <class T>
inline constexpr bool is_no_kwargs_v = std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, names::RunOptions>;

/// Calls `call(args..., kwargs)`, or `call(args...)` if there are no kwargs.
template <class Call, class Args, class Kwargs>
decltype(auto) call_with(Call&& call, const Args& args, [[maybe_unused]] const Kwargs& kwargs) {
  if constexpr (!is_arguments_v<Args>) {
    static_assert(lockstep::detail::never<Args>,
                  "positional args must be a list or tuple: write strategy.run(fn, std::tuple{x})");
    return lockstep::detail::AfterCompileError();
  } else {
    return std::apply(
        [&](const auto&... each) -> decltype(auto) {
          if constexpr (is_no_kwargs_v<Kwargs>)
            return call(each...);
          else
            return call(each..., kwargs);
        },
        args);
  }
}

}  // namespace lockstep::compat
