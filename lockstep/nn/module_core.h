#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/nn/module_options.h"
#include "lockstep/nn/weight_copies.h"

namespace torch::nn {
class Module;
}

namespace lockstep {
class Strategy;
}

namespace lockstep::detail {

struct ContextEntry;
class ModuleWatch;  // nn/module_watch.h

/// The replicas of a module and what they share; the part of MirroredModule that knows no type of the user's.
///
/// Each replica has a module of its own, with its own leaf tensors and gradients. Leaves of replicas on one device
/// share the memory of the values: an update by one replica is an update for all. Each device has a copy of the values,
/// and all copies hold the same bits whenever a run begins or a step has ended.
class LOCKSTEP_EXPORT ModuleCore {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

  struct Parameter {
    std::string name;                         ///< the first of its names, if it is tied
    std::vector<at::Tensor> leaves;           ///< one per local replica
    std::vector<const void*> addresses = {};  ///< of the memory that `make` has given them

    /// Whether replica `k`'s has other memory than before.
    bool has_moved(std::size_t k) const { return leaves[k].const_data_ptr() != addresses[k]; }
  };

  ModuleCore(Strategy& strategy, const Factory& factory, const ModuleOptions& options);
  ~ModuleCore();

  Strategy& strategy() const;
  /// Whether `strategy` made it. One that has ended made none, whoever is at its address now.
  bool is_of(const Strategy* strategy) const { return strategy == strategy_ && !alive_.expired(); }
  std::size_t size() const { return replicas_.size(); }
  const std::shared_ptr<torch::nn::Module>& replica(std::size_t k) const { return replicas_[k]; }
  /// The calling replica's module, or replica 0's outside of replicas.
  const std::shared_ptr<torch::nn::Module>& current() const;

  const std::vector<Parameter>& parameters() const;
  const WeightCopies& copies() const { return copies_; }
  /// Writes replica 0's values of parameter `p` to the other copies. Outside of run, or while replica 0 leads.
  void spread_weights(std::size_t p) const;
  NamedTensors named_parameters() const;  ///< of the calling replica; replica 0's outside of replicas
  /// The handle is about to call the module's forward.
  void expect_forward() const;

  void train(bool on);
  void to(at::ScalarType dtype);
  void apply(const std::function<void(torch::nn::Module&)>& f);
  /// Calls `change` once, with replica 0's module, and tells every replica that its weights have changed. Buffers that it
  /// changes are copied to the other replicas. Outside of run, or inside by every replica.
  void update(FunctionRef<void(torch::nn::Module&)> change);
  NamedTensors parameters_of(std::size_t k) const;  ///< under all their names, tied ones too
  NamedTensors buffers_of(std::size_t k) const;
  /// Parameters, and then buffers. Not sparse ones: they are constants, which stay as the module has built them.
  std::vector<Parameter> tensors() const;
  /// Buffers of all replicas of all workers as one: floating ones averaged, others as replica 0 has them.
  NamedTensors named_buffers() const;
  NamedTensors named_buffers_here() const;  ///< the same of this worker's replicas alone
  /// Gives all replicas the values of `named_buffers`.
  void synchronize_buffers();
  /// All replicas of all workers have got the same buffers.
  void note_equal_buffers();
  bool has_equal_buffers() const;

  /// Drops the gradients of the calling replica, or of all outside of run.
  void zero_grad(bool set_to_none);

  /// An update has failed half-way, so that the weights are of no use until they are loaded again.
  void set_torn(bool is_torn) { is_torn_.store(is_torn, std::memory_order_release); }
  bool is_torn() const { return is_torn_.load(std::memory_order_acquire); }

  /// Called by an optimizer that has taken over parameter `p`: memory must stay where it is from now on.
  void pin(std::size_t p);
  bool is_pinned(std::size_t p) const;
  /// Throws if parameters were added, removed, replaced or moved since `make`.
  void require_unchanged() const;
  /// How many parameters and parts replica `k` and the parts that `make` has built have: if the number has changed,
  /// `require_unchanged` is worth its cost.
  std::size_t registered_in(std::size_t k) const;
  /// Throws the same for parameter `name`, which has moved.
  [[noreturn]] static void throw_moved(const std::string& name);
  /// Who changes the weights without Lockstep's knowledge.
  const ModuleWatch& watch() const { return *watch_; }
  /// Whether it was made in inference mode, outside of which its weights cannot be written to.
  bool is_inference() const;

  /// A mark of which parameters of replica `k` are frozen, which of its parts are in training mode, and which weights of its
  /// layers were replaced.
  std::uint64_t modes_of(std::size_t k) const;
  /// Throws, with the first difference, if replicas have other parameters frozen, or other parts in training mode, than
  /// replica 0. While no replica changes that: they have met.
  void require_alike() const;
  /// The same for what an evaluation sees: the model and its parts in training mode, and weights of layers that were
  /// replaced.
  void require_same_use() const;
  /// Whether a part that `make` has built is no longer in replica `k`'s module.
  bool has_lost_part(std::size_t k) const;

 private:
  using BufferDigests = std::vector<std::pair<std::string, std::uint64_t>>;
  BufferDigests digests_of_buffers() const;  ///< of replica 0, by name; none unless one client drives several workers
  /// Throws if one client drives several workers, each of which would show it other buffers outside of run.
  void require_buffers_of_one_client() const;
  const std::shared_ptr<torch::nn::Module>& module_of_replica(const ContextEntry& replica) const;
  void collect_parameters();
  void require_shareable() const;
  void change_once(FunctionRef<void(torch::nn::Module&)> change);
  void share_memory();
  void spread_all_weights() const;
  void copy_buffers();
  void guard_gradients();

  Strategy* strategy_;
  std::weak_ptr<Strategy*> alive_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  WeightCopies copies_;
  struct Inventory;                       // nn/module_inventory.h
  std::unique_ptr<Inventory> inventory_;  ///< what `make` has found in the modules
  std::unique_ptr<ModuleWatch> watch_;
  std::atomic<bool> is_torn_{false};
};

/// Makes one that notices who changes its weights inside run.
LOCKSTEP_EXPORT std::shared_ptr<ModuleCore> make_module_core(Strategy& strategy, const ModuleCore::Factory& factory,
                                                             const ModuleOptions& options);

}  // namespace lockstep::detail
