#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/data/format/mapped_file.h"
#include "lockstep/strategy/replica_random.h"

// Keeping one model equal on several workers. With one worker this does nothing.
namespace lockstep {
class Strategy;
}

namespace lockstep::detail {

class ModuleCore;

/// LibTorch's generators while a model is made: all builds, on all workers, draw the numbers of the chief's first one.
class ConstructionRng {
 public:
  /// `devices`: of this worker's replicas. Every worker must call it.
  ConstructionRng(const Strategy& strategy, const std::vector<at::Device>& devices);
  /// A worker whose generators differed from the chief's gets its own state back.
  ~ConstructionRng();
  ConstructionRng(const ConstructionRng&) = delete;
  ConstructionRng& operator=(const ConstructionRng&) = delete;

  /// Call before each replica's build.
  void begin_build(bool is_first) const;

 private:
  SharedGenerator marked_;  ///< marks a fresh seed, so that equally seeded workers have equal states
  RngSnapshot chiefs_;
  std::optional<RngSnapshot> own_;  ///< unset: equal to the chief's
};

/// While a model is made: copies the chief's values to all workers. If the parameters or buffers of a worker's model do
/// not match the chief's, throws on every worker.
void take_chiefs_values(const ModuleCore& model);

/// Throws on every worker unless all have the same weights. A collective.
void require_same_weights(const ModuleCore& model);

/// The buffers of each replica of all workers, by replica id. Every worker must call it.
std::vector<torch::OrderedDict<std::string, at::Tensor>> buffers_of_all_workers(const ModuleCore& model);

/// Calls `act` only on the chief, and returns on every worker once it is done. If it throws, all workers throw. The others wait until
/// `limit`, by default that of the strategy's collectives.
void do_on_chief(const Strategy& strategy, const char* what, FunctionRef<void()> act,
                 std::optional<Deadline> limit = {});

/// Reads `path` on the chief; returns its contents on every worker.
data::MappedFile chiefs_file(const Strategy& strategy, const std::string& path);

}  // namespace lockstep::detail
