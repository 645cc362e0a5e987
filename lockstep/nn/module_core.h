#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/nn/module_options.h"
#include "lockstep/strategy/detail/run_notes.h"

namespace torch::nn {
class Module;
}

namespace lockstep {
class Strategy;
}

namespace lockstep::detail {

/// The replicas of a module and what they share; the part of MirroredModule that knows no type of the user's.
///
/// Each replica has a module of its own, with its own leaf tensors and gradients. Leaves of replicas on one device
/// share the memory of the values: an update by one replica is an update for all.
class LOCKSTEP_EXPORT ModuleCore final : public RunWatcher {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

  struct Parameter {
    std::string name;                ///< the first of its names, if it is tied
    std::vector<at::Tensor> leaves;  ///< one per local replica
  };

  ModuleCore(Strategy& strategy, const Factory& factory, const ModuleOptions& options);

  Strategy& strategy() const;
  std::size_t size() const { return replicas_.size(); }
  const std::shared_ptr<torch::nn::Module>& replica(std::size_t k) const { return replicas_[k]; }
  /// The calling replica's module, or replica 0's outside of replicas.
  const std::shared_ptr<torch::nn::Module>& current() const;

  const std::vector<Parameter>& parameters() const { return parameters_; }
  NamedTensors named_parameters() const;  ///< replica 0's leaves

  void train(bool on);
  void to(at::ScalarType dtype);
  void apply(const std::function<void(torch::nn::Module&)>& f);
  /// Calls `change` once, with replica 0's module, and tells every replica that its weights have changed. Buffers that it
  /// changes are copied to the other replicas. Outside of run, or inside by every replica.
  void update(FunctionRef<void(torch::nn::Module&)> change);
  NamedTensors parameters_of(std::size_t k) const;  ///< under all their names, tied ones too
  NamedTensors buffers_of(std::size_t k) const;
  /// Buffers of all replicas of all workers as one: floating ones averaged, others as replica 0 has them.
  NamedTensors named_buffers() const;
  NamedTensors named_buffers_here() const;  ///< the same of this worker's replicas alone
  /// Gives all replicas the values of `named_buffers`.
  void synchronize_buffers();

  /// Drops the gradients of the calling replica, or of all outside of run.
  void zero_grad(bool set_to_none);

  /// An update has failed half-way, so that the weights are of no use until they are loaded again.
  void set_torn(bool is_torn) { is_torn_.store(is_torn, std::memory_order_release); }
  bool is_torn() const { return is_torn_.load(std::memory_order_acquire); }

  /// Called by an optimizer that has taken over the parameters: their memory must stay where it is from now on.
  void pin() { pinned_ = true; }
  /// Whether parameter `p` of replica `k` has other memory than before.
  bool has_moved(std::size_t p, std::size_t k) const {
    return parameters_[p].leaves[k].const_data_ptr() != addresses_[p * replicas_.size() + k];
  }
  /// Throws if parameters were added, removed, replaced or moved since `make`.
  void require_unchanged() const;
  /// How many parameters and parts replica `k` and the parts that `make` has built have: if the number has changed,
  /// `require_unchanged` is worth its cost.
  std::size_t registered_in(std::size_t k) const;
  /// Replicas share their weights, so whoever changes them inside run does it once per replica. Throws if replica `k`
  /// has since they were remembered: if its leaves have new versions, or (on replica 0, for those who write through
  /// `data()`) another value in the middle of a parameter. Also throws if it has used a parameter that has moved.
  void require_untouched(std::size_t k) const override;
  void remember(std::size_t k) const override;
  /// Throws if replicas have used the model while parts of it were in training mode on some of them only. Warns, once, of
  /// weights that change between runs that leave gradients behind: by an optimizer that sees replica 0's alone.
  void require_same_use() const override;
  /// Whether it was made in inference mode, outside of which its weights cannot be written to.
  bool is_inference() const;
  /// Weights are set between runs in a way that has nothing to do with gradients.
  void expect_other_weights() { samples_with_gradients_.clear(); }

  /// A mark of which parameters of replica `k` are frozen and which of its parts are in training mode.
  std::uint64_t modes_of(std::size_t k) const;
  /// Throws, with the first difference, if replicas have other parameters frozen, or other parts in training mode, than
  /// replica 0. While no replica changes that: they have met.
  void require_alike() const;

 private:
  void collect_parameters();
  void require_shareable() const;
  void require_same_training() const;
  void look_for_other_optimizers() const;
  void change_once(FunctionRef<void(torch::nn::Module&)> change);
  void share_memory();
  void copy_buffers();
  void guard_gradients();

  Strategy* strategy_;
  std::weak_ptr<Strategy*> alive_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>>
      parts_;  ///< of each replica, by name
  std::vector<Parameter> parameters_;
  std::vector<const void*> addresses_;  ///< of the memory of parameter p on replica k, at p * size() + k
  /// At k * parameters_.size() + p: the version of replica k's leaf. Each replica touches its own, inside run.
  mutable std::vector<std::uint32_t> versions_;
  mutable std::vector<std::uint64_t> samples_;      ///< one element of each parameter, as bits; replica 0's
  mutable std::vector<char> used_;                  ///< per replica: in this run. Written by the replica alone
  mutable std::vector<std::uint64_t> failed_runs_;  ///< of the strategy, when each replica last remembered
  mutable std::vector<std::uint64_t> samples_with_gradients_;  ///< `samples_` of a run that has left gradients behind
  mutable bool has_warned_of_other_optimizers_ = false;
  std::atomic<bool> is_torn_{false};
  bool pinned_ = false;
};

/// Makes one that notices who changes its weights inside run.
LOCKSTEP_EXPORT std::shared_ptr<ModuleCore> make_module_core(Strategy& strategy, const ModuleCore::Factory& factory,
                                                             const ModuleOptions& options);

}  // namespace lockstep::detail
