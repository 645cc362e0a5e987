#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/train/batch_parts.h"
#include "lockstep/train/typed_function.h"
#include "lockstep/values/structure.h"

namespace lockstep::train {

namespace detail {

/// The same value with 4-dimensional tensors in channels-last memory.
template <class T>
T in_channels_last(const T& value) {
  return map_structure(
      []<class L>(const L& leaf) -> L {
        if constexpr (std::is_same_v<L, at::Tensor>) {
          if (leaf.defined() && leaf.dim() == 4 && leaf.layout() == at::kStrided)
            return leaf.contiguous(at::MemoryFormat::ChannelsLast);
        }
        return leaf;
      },
      value);
}

}  // namespace detail

/// What a model computes for the input of a batch: a function that returns a tensor or a structure of tensors.
///
///     .forward = [net](const Sentences& mine) { return net->forward(mine.words, mine.lengths); }
///
/// It is called with the whole batch, with its first fields, as many as it has parameters, or with the parts of the first field:
/// whichever have the types of its parameters. Inside run, on every replica.
class LOCKSTEP_EXPORT Forward {
 public:
  Forward() = default;
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Forward>)
  Forward(F f) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_invocable_v<F&, const at::Tensor&>) {
      set(std::move(f), detail::TypeList<at::Tensor>());
    } else {
      static_assert(detail::HasParameters<F>,
                    "forward must be a function whose parameters have types: "
                    "[net](const Batch& mine) { return net->forward(mine.input); }");
      if constexpr (detail::HasParameters<F>) set(std::move(f), typename detail::ParametersOf<F>::type());
    }
  }
  /// That of a network; none if it has overloads or templates of which none takes one tensor.
  template <class M>
  explicit Forward(const MirroredModule<M>& net) {
    if constexpr (requires(M & m, const at::Tensor& x) { at::Tensor(m.forward(x)); }) {
      set([net](const at::Tensor& input) -> at::Tensor { return net.forward(input); }, detail::TypeList<at::Tensor>());
    } else if constexpr (requires(M & m, const at::Tensor& x) { m.forward(x); }) {
      set([net](const at::Tensor& input) { return net.forward(input); }, detail::TypeList<at::Tensor>());
    } else if constexpr (requires { &M::forward; }) {
      set_member(net, typename detail::ParametersOf<decltype(&M::forward)>::type());
    }
  }

  explicit operator bool() const { return static_cast<bool>(plain_); }
  /// The type that it returns.
  const std::type_info& result() const { return *result_; }
  /// What it takes of a batch.
  struct Input {
    detail::AnyRefs arguments;     ///< arguments in the order of its parameters
    const detail::AnyRef* target;  ///< the one field that it does not take; null if there is none
  };
  /// What it takes of a batch. Throws InvalidArgument if no part of the batch has the types of its parameters.
  Input input_of(const detail::BatchRefs& batch) const;
  detail::AnyValue operator()(const Input& input, bool channels_last) const {
    return (channels_last ? channels_last_ : plain_)(input.arguments);
  }

 private:
  template <class F, class... A>
  void set(F f, detail::TypeList<A...> parameters) {
    static_assert(!std::is_void_v<std::invoke_result_t<F&, const A&...>>, "forward must return its output");
    result_ = &typeid(std::decay_t<std::invoke_result_t<F&, const A&...>>);
    plain_ = {f, parameters};
    auto converting = [f](const A&... inputs) mutable { return f(detail::in_channels_last(inputs)...); };
    channels_last_ = {std::move(converting), parameters};
  }
  template <class M, class... A>
  void set_member(const MirroredModule<M>& net, detail::TypeList<A...> parameters) {
    if constexpr (requires(M & m, const A&... inputs) { m.forward(inputs...); })
      set([net](const A&... inputs) { return net.forward(inputs...); }, parameters);
  }

  detail::TypedFunction<detail::AnyValue> plain_, channels_last_;
  const std::type_info* result_ = &typeid(void);
};

}  // namespace lockstep::train
