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

// How several workers keep one model equal. With one worker there is nothing to do.
namespace lockstep {
class Strategy;
}

namespace lockstep::detail {

class ModuleCore;

/// LibTorch's generators while a model is made: all builds, on all workers, draw what the chief's first one draws.
class ConstructionRng {
 public:
  /// `devices`: of this worker's replicas. Every worker must call it.
  ConstructionRng(const Strategy& strategy, const std::vector<at::Device>& devices);
  /// A worker whose generators were not in the chief's state gets its own state back.
  ~ConstructionRng();
  ConstructionRng(const ConstructionRng&) = delete;
  ConstructionRng& operator=(const ConstructionRng&) = delete;

  /// To be called before each replica's build.
  void begin_build(bool is_first) const;

 private:
  SharedGenerator marked_;  ///< marks a fresh seed, so that equally seeded workers have equal states
  RngSnapshot chiefs_;
  std::optional<RngSnapshot> own_;  ///< unset: equal to the chief's
};

/// While a model is made: gives all workers the chief's values. If the parameters or buffers of a worker's model are not those
/// of the chief's, throws on every worker.
void take_chiefs_values(const ModuleCore& model);

/// Throws on every worker unless all have the same weights. A collective.
void require_same_weights(const ModuleCore& model);

/// The buffers of each replica of all workers, by replica id. Every worker must call it.
std::vector<torch::OrderedDict<std::string, at::Tensor>> buffers_of_all_workers(const ModuleCore& model);

/// Calls `act` on the chief only, and returns on every worker once it is done. If it throws, all workers throw. The others wait until
/// `limit`, by default that of the strategy's collectives.
void do_on_chief(const Strategy& strategy, const char* what, FunctionRef<void()> act,
                 std::optional<Deadline> limit = {});

/// A file that the chief alone reads, in the memory of every worker.
data::MappedFile chiefs_file(const Strategy& strategy, const std::string& path);

}  // namespace lockstep::detail
