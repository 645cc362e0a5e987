#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep {

/// A callable that belongs to someone else: two pointers, no allocation. Lives no longer than what it refers to.
template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<Result, F&, Args...>)
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): call sites pass lambdas
      : target_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* target, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<F>*>(target))(std::forward<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(target_, std::forward<Args>(args)...); }

 private:
  void* target_;
  Result (*call_)(void*, Args...);
};

}  // namespace lockstep
