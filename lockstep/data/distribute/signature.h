#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/base/function_ref.h"
#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"

// What the values of a distributed dataset look like, and whether the arguments of `run` look so, too.
namespace lockstep {

/// What is known beforehand about the values of a distributed dataset. `strategy.run` takes it as a signature.
struct LOCKSTEP_EXPORT DistributedSpec {
  int per_replica = 0;        ///< components of each value; 0: one replica in one process, whose values are plain
  data::ElementSpec element;  ///< of one component

  bool operator==(const DistributedSpec& other) const = default;
};
/// "PerReplica x 2 of (float32[?, 784], int64[?])"
LOCKSTEP_EXPORT std::string to_string(const DistributedSpec& spec);

namespace data {

/// Throws InvalidArgument if the signature is of another number of replicas.
LOCKSTEP_EXPORT void check_signature_width(const DistributedSpec& signature, int replicas);

/// Throws InvalidArgument that names the first leaf of `arguments` that is not as `signature` says. `names` gives the
/// places of all leaves, "argument 0['image']"; it is called only then.
LOCKSTEP_EXPORT void check_signature(const DistributedSpec& signature, const std::vector<Element>& arguments,
                                     int replica, FunctionRef<std::vector<std::string>()> names);

}  // namespace data
}  // namespace lockstep
