#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "lockstep/data/distribute/distributed_input.h"

namespace lockstep::data {

/// Batches without rows, for replicas without data. Their shapes come from the dataset's spec or, if that is
/// incomplete, from any element that can be read.
class EmptyBatches {
 public:
  explicit EmptyBatches(DistributedInputPtr input);

  /// Whether the spec, or the values of an earlier step, give their shapes.
  bool are_told() const { return spec_is_enough_ || seen_.size() > 0; }
  /// Learns the shapes from the values of a step, some of which may be empty.
  void learn_from(const std::vector<Element>& values);

  /// Whether they can be made. May read elements of the pass; does not throw, because other workers are waiting.
  bool are_known(const IterationContext& context);

  Element make(std::size_t replica) const;

  /// Throws why they cannot be made in this step.
  [[noreturn]] void throw_unknown(std::int64_t step) const;

  /// Forgets why elements could not be read; called when the position changes.
  void forget_failures() { unseen_because_ = nullptr; }

 private:
  Element first_without_rows(const IterationContext& context);

  DistributedInputPtr input_;
  bool spec_is_enough_;
  Element seen_;                       ///< some element without its rows; empty if the spec is complete
  std::exception_ptr unseen_because_;  ///< the first error while reading an element for its shape
};

}  // namespace lockstep::data
