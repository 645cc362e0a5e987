#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace lockstep {

/// Along what a reduction runs inside each replica before it runs over replicas: nothing, one dimension or several.
/// Negative numbers count from the end.
///
///     strategy.reduce(ReduceOp::Mean, losses, 0);        // over all rows of all replicas
///     strategy.reduce(ReduceOp::Sum, images, {0, 1});
class Axis {
 public:
  Axis() = default;                           ///< over replicas only
  Axis(std::int64_t dim) : dims_{dim} {}      // NOLINT(google-explicit-constructor)
  Axis(int dim) : Axis(std::int64_t{dim}) {}  // NOLINT(google-explicit-constructor)
  Axis(std::initializer_list<std::int64_t> dims) : dims_(dims) {}
  Axis(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {}  // NOLINT(google-explicit-constructor)

  /// The dimensions; empty: none.
  const std::vector<std::int64_t>& dims() const { return dims_; }

 private:
  std::vector<std::int64_t> dims_;
};

}  // namespace lockstep
