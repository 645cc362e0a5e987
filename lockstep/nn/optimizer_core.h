#pragma once

#include <torch/optim/optimizer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/nn/fused_update.h"
#include "lockstep/nn/gradient_reduction.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/nn/parameter_state.h"
#include "lockstep/nn/shard_plan.h"

namespace lockstep {

class GradScaler;

/// What to do when a reduced gradient holds NaN or infinity.
enum class NotFinite {
  Ignore,    ///< as LibTorch does. The default: looking costs a pass over the gradients and a meeting per step
  Raise,     ///< an error that names parameter and replica; nothing has been changed
  SkipStep,  ///< leave the weights as they are and go on
};

/// Comparing what replicas hold, to notice memory that went bad or code that changed one replica alone.
struct DigestOptions {
  /// Steps between comparisons; 0: never. What a comparison costs is a pass over what is compared.
  std::int64_t every = 0;
  /// Compare the model's buffers too. They may differ, as ordinary batch norm's do; with SyncBatchNorm they must not.
  bool buffers = false;
};

/// The part of MirroredOptimizer that knows no optimizer class.
///
/// Each replica owns segments of the parameters (shard_plan.h) and an inner optimizer over them. A step: all replicas
/// have finished backward; each adds up the gradients of its segments and updates them; all have finished updating.
/// Whatever can fail comes before the update.
class LOCKSTEP_EXPORT OptimizerCore {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using InnerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  struct Group {
    std::vector<int> parameters;  ///< indices into the module's parameters
    std::unique_ptr<torch::optim::OptimizerOptions> options;
  };

  OptimizerCore(std::shared_ptr<ModuleCore> module, std::vector<Group> groups, InnerFactory make_inner,
                bool elementwise, detail::StateAccess state_access, detail::FusedUpdate fused_update = nullptr);
  ~OptimizerCore();

  bool minimize(const at::Tensor& loss, GradScaler* scaler = nullptr);
  void backward(const at::Tensor& loss, const GradScaler* scaler = nullptr);
  void reduce_gradients(ReduceOp op);
  torch::OrderedDict<std::string, at::Tensor> gradients();
  double clip_global_norm(double max_norm);
  void clip_value(double limit);
  void scale_gradients(double factor);
  bool gradients_are_finite();
  bool unscale(GradScaler& scaler);
  void step();
  void zero_grad();

  void set_reduce_op(ReduceOp op);
  ReduceOp reduce_op() const { return reduce_op_; }
  void set_clip_global_norm(std::optional<double> max_norm);
  void set_clip_value(std::optional<double> limit);
  void set_not_finite(NotFinite policy);
  void set_accumulate(int calls);
  void set_digest(const DigestOptions& options);
  void set_learning_rate(double rate);

  std::size_t group_count() const { return groups_.size(); }
  torch::optim::OptimizerOptions& options(std::size_t group);
  const torch::optim::OptimizerOptions& options_of(int parameter) const {
    return *groups_[static_cast<std::size_t>(group_of_[static_cast<std::size_t>(parameter)])].options;
  }
  bool is_elementwise() const { return elementwise_; }
  [[noreturn]] static void throw_other_options();
  /// Throws if an update has failed half-way.
  void require_usable(const char* operation) const;
  /// Throws inside an `accumulate` window, where gradients belong to the state and are not in it.
  void require_no_open_window(const char* operation) const;
  /// Forgets gradients and open windows of all replicas. Outside of run.
  void start_anew_at(std::int64_t steps);
  /// Gives a parameter that is cut into shards, and what is remembered about it, to one replica; its gradients are
  /// sparse. While no other replica is at work.
  void deal_out_whole(int parameter);
  std::int64_t steps() const;
  std::int64_t skipped_steps() const;
  const detail::StateAccess& state_access() const { return state_access_; }
  const ShardPlan& shards() const { return shards_; }
  const std::shared_ptr<ModuleCore>& module() const { return module_; }
  torch::optim::Optimizer& inner(std::size_t replica);
  /// The 1-D views (whole parameters: the parameters) that `inner(replica)` updates, in the order of
  /// `shards()[replica]`.
  const std::vector<at::Tensor>& segments(std::size_t replica) const;

 private:
  struct Local;

  Local& local_here(const char* operation);
  const Local& counting_local() const;
  void drop_gradients(Local& local);
  void warn_of_unreached(Local& local);
  /// Throws where an option has a value that no optimizer can work with.
  void require_valid_options() const;
  void require_no_failed_run(const Local& local, const char* operation) const;
  /// Drops what a run that failed has left behind.
  void forget_failed_run(Local& local);
  void build_shards();
  void show_module(Local& local);
  /// Throws, the same on every replica, if one has other parameters than it was made with, or other modes than the
  /// others.
  void require_same_modules(Local& local, const std::vector<const GradientView*>& shown) const;
  void show_gradients(Local& local);
  /// Reduces the own segments once everybody shows gradients, then calls `then` before the replicas part.
  /// With `fuse`, segments with a fused update are left to it.
  void reduce_gradients(ReduceOp op, const char* call);
  void reduce_and(Local& local, ReduceOp op, const char* call, bool fuse,
                  FunctionRef<void(const GradientReduction&)> then);
  /// How each gradient looks; throws, the same on every replica, what cannot be reduced or updated.
  void look_at_gradients(Local& local, const GradientReduction& reduction);
  void reduce_own(Local& local, const GradientReduction& reduction, bool fuse);
  /// Does what must not stop half-way on one replica while others go on: if it throws, the weights are torn.
  void do_or_tear(const Local& local, FunctionRef<void()> work);
  /// Throws if `optimizer`'s class cannot take a sparse gradient of this parameter.
  void require_takes_sparse(std::size_t parameter, const torch::optim::Optimizer& optimizer) const;
  bool can_fuse(const Local& local, std::size_t s, const GradientReduction& reduction) const;
  void take_over_sparse(Local& local);
  /// LibTorch cannot add a dense gradient to what it remembers of sparse ones.
  void unfold_sparse_states(Local& local);
  at::Tensor gradient_of(const Local& local, std::size_t s) const;
  bool check_finite(Local& local);
  void apply_gradients(Local& local);
  /// Throws where `operation`, which needs real numbers, would meet complex ones.
  void require_real_gradients(const Local& local, const char* operation) const;
  /// Throws where `operation` would meet gradients of a scaled loss.
  void require_unscaled(const Local& local, const char* operation) const;
  double global_norm(Local& local, double max_norm);
  void copy_options(Local& local);
  void update_own(Local& local, const GradientReduction* fused_from = nullptr);
  void finish_step(Local& local);
  void compare_digests(Local& local);

  std::shared_ptr<ModuleCore> module_;
  std::vector<Group> groups_;
  InnerFactory make_inner_;
  bool elementwise_;
  detail::StateAccess state_access_;
  detail::FusedUpdate fused_update_;
  std::vector<bool> whole_;    ///< per parameter: updated as one, by one replica
  std::vector<int> group_of_;  ///< per parameter; -1: not optimized
  ShardPlan shards_;
  std::vector<std::unique_ptr<Local>> locals_;

  ReduceOp reduce_op_ = ReduceOp::Sum;
  std::optional<double> max_norm_;
  std::optional<double> value_limit_;
  NotFinite not_finite_ = NotFinite::Ignore;
  int accumulate_ = 1;
  DigestOptions digest_;
  std::vector<double> block_sums_;        ///< one per block of every parameter, written by its owner
  std::vector<std::size_t> first_block_;  ///< per parameter

  // Set when an update failed half-way: the weights cannot be trusted any more.
  std::atomic<bool> torn_flag_{false};
  mutable std::mutex torn_mutex_;
  std::string torn_;
  std::int64_t torn_step_ = 0;
};

}  // namespace lockstep
