#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "lockstep/data/distribute/distributed_input.h"

namespace lockstep::data {

/// Batches of no rows, for replicas without data. What they look like is in the dataset's spec or, if that says too
/// little, in any element that can be read.
class EmptyBatches {
 public:
  explicit EmptyBatches(DistributedInputPtr input);

  /// Whether the spec tells what they look like, or values of a step did.
  bool are_told() const { return spec_is_enough_ || seen_.size() > 0; }
  /// Looks at the values of a step, of which some may be empty.
  void learn_from(const std::vector<Element>& values);

  /// Whether they can be made. May read elements of the pass; does not throw, because other workers wait meanwhile.
  bool are_known(const IterationContext& context);

  Element make(std::size_t replica) const;

  /// Throws why they are not known in this step.
  [[noreturn]] void throw_unknown(std::int64_t step) const;

  /// The position changes: forgets why elements could not be read.
  void forget_failures() { unseen_because_ = nullptr; }

 private:
  Element first_without_rows(const IterationContext& context);

  DistributedInputPtr input_;
  bool spec_is_enough_;
  Element seen_;                       ///< some element without its rows; empty if the spec is enough
  std::exception_ptr unseen_because_;  ///< the first error of an element that was read for that
};

}  // namespace lockstep::data
