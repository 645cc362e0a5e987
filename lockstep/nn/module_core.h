#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

struct ModuleOptions {
  /// Keep weights of 2-D convolutions channels-last, which makes them faster on CPU. Inputs become so too: `model(x)`
  /// converts images, [n, c, h, w], and for `model->forward(x)` the first convolution does, as LibTorch does when
  /// weights are channels-last. What it gives on is channels-last as well, so that nothing is converted back and forth.
  bool channels_last = false;
};

/// The replicas of a module and what they share; the part of MirroredModule that knows no type of the user's.
///
/// Each replica has a module of its own, with its own leaf tensors and gradients. Leaves of replicas on one device
/// share the memory of the values: an update by anyone is everybody's.
class LOCKSTEP_EXPORT ModuleCore {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;

  struct Parameter {
    std::string name;                ///< the first of its names, if it is tied
    std::vector<at::Tensor> leaves;  ///< one per local replica
  };

  ModuleCore(Strategy& strategy, const Factory& factory, const ModuleOptions& options);

  Strategy& strategy() const;
  std::size_t size() const { return replicas_.size(); }
  const ModuleOptions& options() const { return options_; }
  const std::shared_ptr<torch::nn::Module>& replica(std::size_t k) const { return replicas_[k]; }
  /// The calling replica's module, or replica 0's outside of replicas.
  const std::shared_ptr<torch::nn::Module>& current() const;

  const std::vector<Parameter>& parameters() const { return parameters_; }

  void train(bool on);
  void to(at::ScalarType dtype);
  void apply(const std::function<void(torch::nn::Module&)>& f);
  /// Buffers brought together: floating ones averaged, others as replica 0 has them.
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;
  /// Gives all replicas what `named_buffers` tells.
  void synchronize_buffers();

  /// Called by an optimizer that has taken the parameters over: their memory must stay where it is from now on.
  void pin() { pinned_ = true; }
  /// Throws if parameters were added, removed, replaced or moved since `make`.
  void require_unchanged() const;
  /// How many parameters and parts replica `k` and the parts that `make` has built have: if it is another number than
  /// before, `require_unchanged` is worth its cost.
  std::size_t registered_in(std::size_t k) const;
  /// A mark of which parameters of replica `k` are frozen and which of its parts are in training mode.
  std::uint64_t modes_of(std::size_t k) const;
  /// Throws, with the first difference, if replicas have other parameters frozen, or other parts in training mode, than
  /// replica 0. While nobody changes that: the replicas have met.
  void require_alike() const;

 private:
  void collect_parameters();
  void require_shareable() const;
  void share_memory();
  void copy_buffers();
  void guard_gradients();

  ModuleOptions options_;
  Strategy* strategy_;
  std::weak_ptr<Strategy*> alive_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>>
      parts_;  ///< of each replica, by name
  std::vector<Parameter> parameters_;
  std::vector<const void*> addresses_;  ///< of the parameters' memory, replica by replica
  bool pinned_ = false;
};

}  // namespace lockstep
