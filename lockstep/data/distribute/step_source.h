#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/ceil_split.h"
#include "lockstep/data/distribute/split.h"
#include "lockstep/data/stage.h"
#include "lockstep/values/per_replica.h"

namespace lockstep::gpu {
class Arrival;  // strategy/gpu.h
}

// The elements of one worker's replicas, step by step.
namespace lockstep::data {

/// One step of a worker: an element for each local replica that has one.
struct InputStep {
  std::vector<std::optional<Element>> elements;
  /// How many replicas of all workers have an element, if this worker knows by itself.
  std::optional<std::int64_t> total = std::nullopt;
  /// Rows of all workers, if this worker knows by itself.
  BatchRows rows = {};
  /// Copies to a GPU to wait for before the elements are used.
  std::vector<std::shared_ptr<gpu::Arrival>> arrivals = {};

  int local_values() const;
  bool is_last() const { return total ? *total == 0 : local_values() == 0; }

  /// The step after the last batch.
  static InputStep end(const ClusterShape& cluster);
};

/// The first dimension that all tensors share, ignoring scalars; -1 if they differ.
std::int64_t common_rows(const Element& element);

/// The steps of one worker, one pass over the data. Used by one thread at a time.
class LOCKSTEP_EXPORT StepSource {
 public:
  virtual ~StepSource();
  /// The next step; a step without elements is the end, as are all that follow. Its tensors are outside any graph and
  /// share no memory with another replica's: replicas run on their own threads and may write into them.
  virtual InputStep next() = 0;
  /// Describes the position after `steps` steps of this pass, and moves a new source there, as PlaceIterator does. The
  /// position does not depend on the number of workers.
  virtual void locate(std::int64_t steps, Position& position) const = 0;
  virtual void restore(std::int64_t steps, Position& position) = 0;
};

/// Either each replica has its own stream, or there is one stream and element j goes to replica j mod R: TensorFlow's
/// way, also used for datasets from a function.
LOCKSTEP_EXPORT std::unique_ptr<StepSource> whole_elements(const std::vector<StagePtr>& streams, int replicas,
                                                           const IterationContext& context);

/// How batches are cut for all replicas of a cluster.
struct GlobalSplit {
  SplitRule rule = SplitRule::None;
  ClusterShape cluster = {};

  /// For a pipeline that ends in a plain `batch`: its size, and whether a short last batch is dropped. A worker then
  /// computes only its own replicas' rows.
  std::optional<std::int64_t> batch = std::nullopt;
  bool drop_remainder = false;

  std::shared_ptr<CutWarnings> warnings = std::make_shared<CutWarnings>();
};

/// The worker's own pieces of the steps that ONE worker with all replicas would see: replica k gets piece k. `pipeline`
/// yields global batches, each cut evenly (or not at all: SplitRule::None).
LOCKSTEP_EXPORT std::unique_ptr<StepSource> own_pieces(const StagePtr& pipeline, const GlobalSplit& split,
                                                       const IterationContext& context);

}  // namespace lockstep::data
