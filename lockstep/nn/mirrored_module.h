#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/module_core.h"
#include "lockstep/nn/module_options.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

/// A model with one module per replica and one set of weights; made by `strategy.make`.
///
///     auto model = strategy.make<Net>(/*hidden=*/128);
///     strategy.run([&](const torch::Tensor& x) { auto y = model->forward(x); ... }, batch);
///     model.eval();                                  // reaches all replicas
///
/// Inside `run`, `model->` is the calling replica's module; outside it is replica 0's, which is fine for looking but
/// reaches one replica only. `model(x)` is `model->forward(x)`. Copies of the handle name the same model.
template <class M>
class MirroredModule {
 public:
  using Module = M;

  explicit MirroredModule(std::shared_ptr<detail::ModuleCore> core) : core_(std::move(core)) {}

  M* operator->() const { return static_cast<M*>(core_->current().get()); }
  M& operator*() const { return static_cast<M&>(*core_->current()); }
  template <class... Args>
  auto operator()(Args&&... args) const {
    return (*this)->forward(std::forward<Args>(args)...);
  }

  /// Local replica k's module.
  std::shared_ptr<M> replica(std::size_t k) const { return std::static_pointer_cast<M>(core_->replica(k)); }
  std::size_t size() const { return core_->size(); }

  void train(bool on = true) { core_->train(on); }
  void eval() { core_->train(false); }
  void to(at::ScalarType dtype) { core_->to(dtype); }
  void apply(const std::function<void(torch::nn::Module&)>& f) { core_->apply(f); }
  /// Changes the weights once for all replicas: clipping, averages, loading by hand. Between runs, or inside run by
  /// every replica, as a meeting in which replica 0's `change` is called. Without gradients.
  ///
  ///     model.update([](Net& net) { for (auto& p : net.parameters()) p.clamp_(-0.01, 0.01); });
  template <std::invocable<M&> F>
  void update(F&& change) {
    core_->update([&](torch::nn::Module& module) { change(static_cast<M&>(module)); });
  }

  /// The weights, by name. They are replica 0's leaves; all replicas share their memory.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const { return core_->named_parameters(); }
  std::vector<at::Tensor> parameters() const { return named_parameters().values(); }
  /// Copies of buffers such as running statistics, those of all replicas as one: floating ones averaged, others as
  /// replica 0 has them.
  torch::OrderedDict<std::string, at::Tensor> named_buffers() const { return core_->named_buffers(); }
  /// Writes the values of `named_buffers` into every replica.
  void synchronize_buffers() { core_->synchronize_buffers(); }

  const std::shared_ptr<detail::ModuleCore>& core() const { return core_; }

 private:
  std::shared_ptr<detail::ModuleCore> core_;
};

namespace detail {

template <class Built>
struct ModuleOf {  // std::shared_ptr<M>
  using type = typename Built::element_type;
  static std::shared_ptr<torch::nn::Module> pointer(Built built) { return built; }
};
template <class Built>
  requires requires { typename Built::ContainedType; }
struct ModuleOf<Built> {  // a holder made by TORCH_MODULE
  using type = typename Built::ContainedType;
  static std::shared_ptr<torch::nn::Module> pointer(Built built) { return built.ptr(); }
};

}  // namespace detail

template <detail::ModuleFactory F>
auto Strategy::make(F&& factory, const ModuleOptions& options) {
  using Built = std::decay_t<std::invoke_result_t<F&>>;
  using Of = detail::ModuleOf<Built>;
  return MirroredModule<typename Of::type>(std::make_shared<detail::ModuleCore>(
      *this, [&] { return Of::pointer(factory()); }, options));
}

template <detail::ModuleFactory F>
auto Strategy::make(F&& factory) {
  return make(std::forward<F>(factory), ModuleOptions{});
}

template <class Net, class... Args>
auto Strategy::make(const ModuleOptions& options, Args&&... args) {
  // Copies, because every replica's module is built from them.
  auto build = [given = std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...)] {
    return std::apply(
        [](const auto&... each) {
          if constexpr (std::is_base_of_v<torch::nn::Module, Net>) {
            return std::make_shared<Net>(each...);
          } else {
            return Net(each...);
          }
        },
        given);
  };
  return make(std::move(build), options);
}

template <class Net, class... Args>
  requires(!detail::begins_with_options_v<Args...>)
auto Strategy::make(Args&&... args) { return make<Net>(ModuleOptions{}, std::forward<Args>(args)...); }

}  // namespace lockstep
