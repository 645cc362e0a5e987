#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"

// Specs of distributed values, and checking the arguments of `run` against them.
namespace lockstep {

/// The shapes and dtypes of a distributed dataset's values that are known beforehand. `strategy.run` takes it as a
/// signature.
struct LOCKSTEP_EXPORT DistributedSpec {
  int per_replica = 0;        ///< components of each value; 0: one replica in one process, whose values are plain
  data::ElementSpec element;  ///< spec of one component

  bool operator==(const DistributedSpec& other) const = default;
};
/// "PerReplica x 2 of (float32[?, 784], int64[?])"
LOCKSTEP_EXPORT std::string to_string(const DistributedSpec& spec);

namespace data {

/// Throws InvalidArgument if the signature is for another number of replicas.
LOCKSTEP_EXPORT void check_signature_width(const DistributedSpec& signature, int replicas);

/// Throws InvalidArgument naming the first leaf of `arguments` that does not match `signature`. `names` returns the
/// paths of all leaves, "argument 0['image']"; it is called only on an error.
LOCKSTEP_EXPORT void check_signature(const DistributedSpec& signature, const std::vector<Element>& arguments,
                                     int replica, FunctionRef<std::vector<std::string>()> names);

}  // namespace data
}  // namespace lockstep
