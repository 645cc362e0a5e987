#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/local/replica_team.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/nn/shard_plan.h"

// Adding up the replicas' gradients, segment by segment, where they lie: no flat copies. The owner of a segment writes
// the sum over its own gradient.
namespace lockstep {

/// One replica's gradients, shown to the others. Undefined where backward gave none.
struct GradientView {
  std::vector<at::Tensor> gradients;
  bool module_is_suspect = false;  ///< this replica's module may have other parameters than before
  std::uint64_t modes = 0;         ///< a mark of what is frozen and what is in training mode (ModuleCore::modes_of)
};

/// How a parameter's gradient looks over all replicas.
enum class GradientKind { None, Dense, Sparse };

/// Brings a gradient into the memory order of its parameter, which is what segments count in. Usually it is already.
at::Tensor in_parameter_order(const at::Tensor& gradient, const at::Tensor& parameter);

class GradientReduction {
 public:
  /// `views` of all replicas in order, valid as long as this object.
  GradientReduction(std::vector<const GradientView*> views, ReduceOp op) : views_(std::move(views)), op_(op) {}

  GradientKind kind_of(std::size_t parameter, const std::string& name) const;

  /// The sum or mean of elements [begin, end), written to the owner's gradient. A replica without a gradient counts as
  /// zero.
  void reduce(const Segment& segment, at::Tensor& owners_gradient) const;

  /// The same elements of every replica's gradient, for a sum made elsewhere. Empty unless all have one, in float32 on
  /// CPU.
  std::vector<const float*> parts(const Segment& segment) const;
  std::int64_t divisor() const { return op_ == ReduceOp::Mean ? static_cast<std::int64_t>(views_.size()) : 1; }

  /// Sparse gradients: all rows in replica order, equal ones added up in that order.
  at::Tensor reduce_sparse(std::size_t parameter) const;

  /// The lowest replica with a NaN or infinity among these elements; -1 if none of those that can still be seen has
  /// one.
  int first_not_finite(const Segment& segment, int except_owner) const;

 private:
  std::vector<const GradientView*> views_;
  ReduceOp op_;
};

}  // namespace lockstep
