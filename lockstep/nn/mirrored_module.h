#pragma once

#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/module_core.h"
#include "lockstep/nn/module_options.h"
#include "lockstep/strategy/strategy.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

namespace detail {
LOCKSTEP_EXPORT void print_model(std::ostream& out, const ModuleCore& model);
/// Throws, explaining how to choose devices, unless it is of the replicas' kind.
LOCKSTEP_EXPORT void require_device_of(const ModuleCore& model, const at::Device& device);
}  // namespace detail

/// A model with one module per replica and one set of weights; made by `strategy.make`.
///
///     auto model = strategy.make<Net>(/*hidden=*/128);
///     strategy.run([&](const torch::Tensor& x) { auto y = model->forward(x); ... }, batch);
///     model.eval();                                  // reaches all replicas
///
/// Inside `run`, `model->` is the calling replica's module; outside it is that of this worker's first replica, which is
/// fine for reading but reaches one replica only. `model(x)` and `model.forward(x)` are `model->forward(x)`. Copies of
/// the handle refer to the same model.
/// same model.
template <class M>
class MirroredModule {
 public:
  using Module = M;  ///< the class of the model

  explicit MirroredModule(std::shared_ptr<detail::ModuleCore> core) : core_(std::move(core)) {}

  M* operator->() const { return static_cast<M*>(core_->current().get()); }
  M& operator*() const { return static_cast<M&>(*core_->current()); }
  template <class... Args>
  auto operator()(Args&&... args) const {
    core_->expect_forward();
    return (*this)->forward(std::forward<Args>(args)...);
  }
  /// Calls the model of the calling replica.
  template <class... Args>
  auto forward(Args&&... args) const {
    core_->expect_forward();
    return (*this)->forward(std::forward<Args>(args)...);
  }

  /// Local replica k's module.
  std::shared_ptr<M> replica(std::size_t k) const { return std::static_pointer_cast<M>(core_->replica(k)); }
  std::size_t size() const { return core_->size(); }

  /// Switches the models of all replicas between training and evaluation.
  void train(bool on = true) { core_->train(on); }
  void eval() { core_->train(false); }
  /// Converts the weights and buffers of all replicas to this type.
  void to(at::ScalarType dtype) { core_->to(dtype); }
  /// A model stays on its replicas' devices: does nothing for that kind of device, and throws for any other.
  void to(const at::Device& device) const { detail::require_device_of(*core_, device); }
  /// Drops the gradients: the calling replica's inside `run`, all replicas' outside. Not needed with
  /// `optimizer.minimize`.
  void zero_grad(bool set_to_none = true) { core_->zero_grad(set_to_none); }
  void apply(const std::function<void(torch::nn::Module&)>& f) { core_->apply(f); }
  /// Changes the weights once for all replicas: clipping, averages, loading by hand. Between runs, or inside run by
  /// every replica, as a meeting in which only replica 0's `change` is called. Without gradients. Buffers changed in
  /// place are changed on all replicas.
  ///
  ///     model.update([](Net& net) { for (auto& p : net.parameters()) p.clamp_(-0.01, 0.01); });
  template <std::invocable<M&> F>
  void update(F&& change) {
    core_->update([&](torch::nn::Module& module) { change(static_cast<M&>(module)); });
  }

  /// The weights by name: replica 0's leaves, whose memory all replicas share.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const { return core_->named_parameters(); }
  std::vector<at::Tensor> parameters() const { return named_parameters().values(); }
  /// Copies of buffers such as running statistics, merged over all replicas: floating ones averaged, others as on
  /// replica 0.
  torch::OrderedDict<std::string, at::Tensor> named_buffers() const { return core_->named_buffers(); }
  /// Writes the values of `named_buffers` into every replica.
  void synchronize_buffers() { core_->synchronize_buffers(); }

  /// Makes the compiler explain the error when a `torch::optim` class or LibTorch function is given the handle.
  template <class Parameters>
    requires std::is_same_v<Parameters, std::vector<at::Tensor>>
  operator Parameters() const {
    static_assert(detail::never<M>,
                  "LibTorch's optimizers and functions do not take a mirrored model: write "
                  "strategy.make_optimizer<torch::optim::SGD>(model, options), and "
                  "optimizer.set_clip_global_norm(max_norm) in the place of clip_grad_norm_");
    return {};
  }

  /// For library code.
  const std::shared_ptr<detail::ModuleCore>& core() const { return core_; }

 private:
  std::shared_ptr<detail::ModuleCore> core_;
};

/// The module as LibTorch prints it, preceded by the number of replicas.
template <class M>
std::ostream& operator<<(std::ostream& out, const MirroredModule<M>& model) {
  detail::print_model(out, *model.core());
  return out;
}

// torch::save and torch::load look for these.
template <class M>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const MirroredModule<M>&) {
  static_assert(detail::never<M>, "torch::save cannot save a mirrored model: write lockstep::save(path, model)");
  return archive;
}
template <class M>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, const MirroredModule<M>&) {
  static_assert(detail::never<M>, "torch::load cannot load a mirrored model: write lockstep::load(path, model)");
  return archive;
}
template <class Opt>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const MirroredOptimizer<Opt>&) {
  static_assert(detail::never<Opt>,
                "torch::save cannot save a mirrored optimizer: write lockstep::save(path, model, optimizer)");
  return archive;
}
template <class Opt>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, const MirroredOptimizer<Opt>&) {
  static_assert(detail::never<Opt>,
                "torch::load cannot load a mirrored optimizer: write lockstep::load(path, model, optimizer)");
  return archive;
}

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

template <class Net>
struct ContainedIn {
  using type = Net;
};
template <class Net>
  requires requires { typename Net::ContainedType; }
struct ContainedIn<Net> {
  using type = typename Net::ContainedType;
};

/// Whether a module class, or the class in a holder, has a constructor for these arguments.
template <class Net, class... Args>
inline constexpr bool is_buildable_v = std::is_constructible_v<typename ContainedIn<Net>::type, Args...> ||
                                       (sizeof...(Args) == 0 && !std::is_same_v<typename ContainedIn<Net>::type, Net>);

}  // namespace detail

template <detail::ModuleFactory F>
auto Strategy::make(F&& factory, const ModuleOptions& options) {
  using Built = std::decay_t<std::invoke_result_t<F&>>;
  using Of = detail::ModuleOf<Built>;
  return MirroredModule<typename Of::type>(detail::make_module_core(
      *this, [&] { return Of::pointer(factory()); }, options));
}

template <detail::ModuleFactory F>
auto Strategy::make(F&& factory) {
  return make(std::forward<F>(factory), ModuleOptions{});
}

template <class Net, class... Args>
auto Strategy::make(const ModuleOptions& options, Args&&... args) {
  constexpr bool kIsClass = std::is_base_of_v<torch::nn::Module, Net>;
  if constexpr (!kIsClass && !requires { typename Net::ContainedType; }) {
    static_assert(detail::never<Net>,
                  "strategy.make<Net>(...) needs a class derived from torch::nn::Module, or a holder");
    return detail::AfterCompileError();
  } else if constexpr (!detail::is_buildable_v<Net, const std::decay_t<Args>&...>) {
    static_assert(detail::never<Net, Args...>,
                  "strategy.make<Net>(arguments...): Net has no constructor for these arguments; each replica's module "
                  "is built from copies of them");
    return detail::AfterCompileError();
  } else {
    // Copies, because every replica's module is built from them.
    auto build = [given = std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...)] {
      return std::apply(
          [](const auto&... each) {
            if constexpr (kIsClass) {
              return std::make_shared<Net>(each...);
            } else {
              return Net(each...);
            }
          },
          given);
    };
    return make(std::move(build), options);
  }
}

template <class Net, class... Args>
  requires(!detail::begins_with_options_v<Args...>)
auto Strategy::make(Args&&... args) { return make<Net>(ModuleOptions{}, std::forward<Args>(args)...); }

}  // namespace lockstep
