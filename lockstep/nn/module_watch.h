#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/strategy/detail/run_notes.h"

namespace lockstep::detail {

class ModuleCore;

/// Detects changes a program makes to a model's weights bypassing Lockstep, inside runs and between them. It only
/// stores versions and single elements: a few loads per parameter and run, and no meeting.
class ModuleWatch final : public RunWatcher {
 public:
  /// `model` has all its parameters, and outlives this.
  explicit ModuleWatch(const ModuleCore& model);

  /// Between runs a program may change replica 0's weights: the copies on other devices follow. Throws if it changed
  /// one of those copies.
  void prepare() const override;
  /// On replica 0 it also warns, once each, of a LibTorch optimizer that was stepped since the previous run, and of a
  /// buffer that was changed only on replica 0.
  void begin(std::size_t k) const override;
  void remember(std::size_t k) const override;
  /// Replicas share their weights, so a change inside run would be applied once per replica. Throws if replica `k`
  /// changed a weight since it was recorded: if its leaves have new versions or, on replica 0, another value in the
  /// middle of a parameter, which reveals writes through `data()`. Also throws if it used a parameter that has moved.
  void require_untouched(std::size_t k) const override;
  /// Warns, once, of a LibTorch optimizer that was stepped in the merge function.
  void end_of_merge() const override;
  /// Throws if replicas used the model while it or parts of it were in training mode on only some of them, or layer
  /// weights were replaced; for evaluations, also if it was rebuilt. Warns, once each, if they used it in eval mode
  /// with differing buffers, or if parameters are frozen on only some replicas.
  void end() const override;

  /// Replica `k` uses the model in this run.
  void note_use(std::size_t k) const {
    if (!used_[k]) used_[k] = true;
  }
  /// The first replica's module is about to compute, outside of run.
  void note_use_outside() const;
  /// Lockstep itself set weights or buffers between runs.
  void expect_other_weights() const {
    suspects_.clear();
    remember_buffers();
    remember_copies();
  }

  /// Evidence of a tensor's changes.
  struct Look {
    std::uint32_t version = 0;
    std::uint64_t element = 0;  ///< one in the middle, as bits; 0 if it was not read

    bool operator==(const Look&) const = default;
  };

 private:
  bool may_have_other_optimizer(std::size_t p) const;
  bool has_changed(std::size_t p) const;
  bool has_new_version(std::size_t p, std::size_t k) const;
  void remember_copies() const;
  void suspect_other_optimizers() const;
  void warn_of_other_optimizers() const;
  void warn_of(std::size_t p, const char* when) const;
  void remember_buffers() const;
  void warn_of_changed_buffers() const;
  void warn_of_different_buffers() const;
  void require_same_parts() const;
  void warn_of_frozen_on_some() const;

  const ModuleCore& model_;
  /// Parameter p of replica k is at k * parameters + p. Each replica touches its own; elements are replica 0's.
  mutable std::vector<Look> seen_;
  mutable std::vector<char> used_;             ///< per replica: in this run. Written only by the replica
  mutable std::vector<std::size_t> suspects_;  ///< parameters that an optimizer of LibTorch may step after this run
  mutable bool has_warned_of_other_optimizers_ = false;

  struct Buffer {
    std::string name;
    at::Tensor first, last;  ///< the first and the last replica's
  };
  std::vector<Buffer> buffers_;
  /// Versions of both, since the last run; empty during a run.
  mutable std::vector<std::uint32_t> buffer_versions_;
  mutable bool has_warned_of_buffers_ = false;
  mutable bool may_differ_ = false;  ///< the model was used in training mode since they were last compared
  mutable bool has_warned_of_evaluation_ = false;
  mutable bool has_warned_of_frozen_ = false;
  mutable std::size_t registered_;  ///< ModuleCore::registered_in for replica 0
  mutable std::int64_t evaluations_ = 0;
};

}  // namespace lockstep::detail
