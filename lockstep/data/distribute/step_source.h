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

// What the replicas of one worker get, step by step.
namespace lockstep::data {

/// One step of a worker: an element for each local replica that has one.
struct InputStep {
  std::vector<std::optional<Element>> elements;
  /// How many replicas of all workers have an element, if this worker can tell by itself.
  std::optional<std::int64_t> total = std::nullopt;
  /// Of all workers, if this worker can tell by itself.
  BatchRows rows = {};
  /// Where elements are on their way to a GPU: what to wait for before they are used.
  std::vector<std::shared_ptr<gpu::Arrival>> arrivals = {};

  int local_values() const;
  bool is_last() const { return total ? *total == 0 : local_values() == 0; }

  /// The one behind the last batch.
  static InputStep end(const ClusterShape& cluster);
};

/// The first dimension that all tensors have in common, those without dimensions aside; -1 if they differ.
std::int64_t common_rows(const Element& element);

/// The steps of one worker, one pass over the data. Used by one thread at a time.
class LOCKSTEP_EXPORT StepSource {
 public:
  virtual ~StepSource();
  /// The next step; one without any element is the end, and so are all after it. Its tensors are outside of any graph, and
  /// none has memory in common with one of another replica: replicas run on threads of their own and may write into it.
  virtual InputStep next() = 0;
  /// Describes the place behind `steps` steps of this pass, and brings a new source there: as PlaceIterator does. What is written
  /// does not depend on the number of workers.
  virtual void locate(std::int64_t steps, Position& position) const = 0;
  virtual void restore(std::int64_t steps, Position& position) = 0;
};

/// Each replica has a stream of its own. Or there is one stream, and element j goes to replica j mod R: TensorFlow's way,
/// and that of datasets from a function.
LOCKSTEP_EXPORT std::unique_ptr<StepSource> whole_elements(const std::vector<StagePtr>& streams, int replicas,
                                                           const IterationContext& context);

/// How batches are cut for all replicas of a cluster.
struct GlobalSplit {
  SplitRule rule = SplitRule::None;
  ClusterShape cluster = {};

  /// Of a pipeline that ends in a plain `batch`: its size, and whether a short last batch is left out. Then a worker
  /// computes only the rows of its own replicas.
  std::optional<std::int64_t> batch = std::nullopt;
  bool drop_remainder = false;

  std::shared_ptr<CutWarnings> warnings = std::make_shared<CutWarnings>();
};

/// The pieces that are the worker's own of the steps that ONE worker with all replicas would see: piece k of a step is
/// replica k's. `pipeline` yields global batches, each of which is cut evenly (or not at all: SplitRule::None).
LOCKSTEP_EXPORT std::unique_ptr<StepSource> own_pieces(const StagePtr& pipeline, const GlobalSplit& split,
                                                       const IterationContext& context);

}  // namespace lockstep::data
