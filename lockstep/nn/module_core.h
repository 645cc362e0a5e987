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

/// The replicas of a module and their shared state; the part of MirroredModule that does not depend on user types.
///
/// Each replica has its own module, with its own leaf tensors and gradients. Leaves of replicas on one device share the
/// memory of the values: an update by one replica is an update for all. Each device has a copy of the values, and all
/// copies have the same bits whenever a run begins or a step has ended.
class LOCKSTEP_EXPORT ModuleCore {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

  struct Parameter {
    std::string name;                         ///< the first of its names, if it is tied
    std::vector<at::Tensor> leaves;           ///< one per local replica
    std::vector<const void*> addresses = {};  ///< addresses of the memory assigned by `make`

    /// Whether replica `k`'s parameter has moved to other memory.
    bool has_moved(std::size_t k) const { return leaves[k].const_data_ptr() != addresses[k]; }
  };

  ModuleCore(Strategy& strategy, const Factory& factory, const ModuleOptions& options);
  ~ModuleCore();

  Strategy& strategy() const;
  /// Whether `strategy` made it. False if that strategy has ended, even if a new one has its address.
  bool is_of(const Strategy* strategy) const { return strategy == strategy_ && !alive_.expired(); }
  std::size_t size() const { return replicas_.size(); }
  const std::shared_ptr<torch::nn::Module>& replica(std::size_t k) const { return replicas_[k]; }
  /// The calling replica's module, or replica 0's outside of replicas.
  const std::shared_ptr<torch::nn::Module>& current() const;

  const std::vector<Parameter>& parameters() const;
  const WeightCopies& copies() const { return copies_; }
  /// Writes replica 0's values of parameter `p` to the other copies. Outside of run, or while replica 0 leads.
  void spread_weights(std::size_t p) const;
  NamedTensors named_parameters() const;  ///< the calling replica's; replica 0's outside of replicas
  /// Called when the handle is about to call the module's forward.
  void expect_forward() const;

  void train(bool on);
  void to(at::ScalarType dtype);
  void apply(const std::function<void(torch::nn::Module&)>& f);
  /// Calls `change` once, with replica 0's module, and marks the weights as changed on every replica. Copies changed
  /// buffers to the other replicas. Outside of run, or inside by every replica.
  void update(FunctionRef<void(torch::nn::Module&)> change);
  NamedTensors parameters_of(std::size_t k) const;  ///< under all their names, tied ones too
  NamedTensors buffers_of(std::size_t k) const;
  /// Parameters, then buffers. Excludes sparse buffers: they are constants, which stay as the module built them.
  std::vector<Parameter> tensors() const;
  /// Buffers merged over all replicas of all workers: floating ones averaged, others as on replica 0.
  NamedTensors named_buffers() const;
  NamedTensors named_buffers_here() const;  ///< the same over this worker's replicas only
  /// Sets the buffers of all replicas to `named_buffers`.
  void synchronize_buffers();
  /// Records that all replicas of all workers have equal buffers now.
  void note_equal_buffers();
  bool has_equal_buffers() const;

  /// Drops the gradients of the calling replica, or of all outside of run.
  void zero_grad(bool set_to_none);

  /// Records that an update failed half-way: the weights are unusable until they are loaded again.
  void set_torn(bool is_torn) { is_torn_.store(is_torn, std::memory_order_release); }
  bool is_torn() const { return is_torn_.load(std::memory_order_acquire); }

  /// Called by an optimizer that takes over parameter `p`: its memory must not move from now on.
  void pin(std::size_t p);
  bool is_pinned(std::size_t p) const;
  /// Throws if parameters were added, removed, replaced or moved since `make`.
  void require_unchanged() const;
  /// How many parameters and parts replica `k` and the parts built by `make` have: if the number has changed,
  /// `require_unchanged` is worth its cost.
  std::size_t registered_in(std::size_t k) const;
  /// Throws the same error for parameter `name`, which has moved.
  [[noreturn]] static void throw_moved(const std::string& name);
  /// Detects changes of the weights that bypass Lockstep.
  const ModuleWatch& watch() const { return *watch_; }
  /// Whether it was made in inference mode, outside of which its weights cannot be written to.
  bool is_inference() const;

  /// A mark of replica `k`'s frozen parameters, parts in training mode, and replaced layer weights.
  std::uint64_t modes_of(std::size_t k) const;
  /// Throws, naming the first difference, if replicas differ from replica 0 in frozen parameters or training modes.
  /// Call while no replica changes that: in a meeting.
  void require_alike() const;
  /// The same for evaluation: training modes of the model and its parts, and replaced layer weights.
  void require_same_use() const;
  /// Whether a part built by `make` is no longer in replica `k`'s module.
  bool has_lost_part(std::size_t k) const;

 private:
  using BufferDigests = std::vector<std::pair<std::string, std::uint64_t>>;
  BufferDigests digests_of_buffers() const;  ///< replica 0's, by name; none unless one client drives several workers
  /// Throws if one client drives several workers and their buffers differ: outside of run each would see different
  /// ones.
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
  std::unique_ptr<Inventory> inventory_;  ///< the contents of the modules as `make` found them
  std::unique_ptr<ModuleWatch> watch_;
  std::atomic<bool> is_torn_{false};
};

/// Makes one that detects changes of its weights inside run.
LOCKSTEP_EXPORT std::shared_ptr<ModuleCore> make_module_core(Strategy& strategy, const ModuleCore::Factory& factory,
                                                             const ModuleOptions& options);

}  // namespace lockstep::detail
