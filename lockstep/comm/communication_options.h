#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/export.h"

namespace lockstep {

/// Which engine moves data between workers. Replicas of one process share their memory, so there it only logs a line.
/// Auto gives the same bits for any number of workers; Ring is Gloo's ring, which has its own order of summation. Nccl
/// requires GPUs and a build with LOCKSTEP_NCCL.
enum class Implementation { Auto, Ring, Nccl };

LOCKSTEP_EXPORT std::string_view to_string(Implementation implementation);  ///< "AUTO", "RING", "NCCL"

/// Parses "auto", "ring" or "nccl" in any case.
LOCKSTEP_EXPORT Implementation parse_implementation(std::string_view name);

/// How a collective is executed; never affects the result.
///
///     context.all_reduce(ReduceOp::Sum, gradients, {.bytes_per_pack = 50 << 20, .timeout_seconds = 120})
struct CommunicationOptions {
  /// Tensors are sent in packs of about this size. 0: all in one; gradients between workers in packs of 1 MB.
  std::int64_t bytes_per_pack = 0;
  /// Give up after this long. 0: no limit; unset: none within a process, ten minutes between workers.
  std::optional<double> timeout_seconds;
  Implementation implementation = Implementation::Auto;  ///< the engine that carries the data

  bool operator==(const CommunicationOptions&) const = default;
};

/// Returns the options, or throws InvalidArgument if a value makes no sense.
LOCKSTEP_EXPORT CommunicationOptions validated(const CommunicationOptions& options);

/// `base`, with every field replaced that differs from the default in `other`. So the options of one call override the
/// strategy's, but a call cannot go back from Ring to Auto.
LOCKSTEP_EXPORT CommunicationOptions merge(const CommunicationOptions& base, const CommunicationOptions& other);

/// The deadline of a wait that begins now.
LOCKSTEP_EXPORT Deadline deadline_of(const CommunicationOptions& options);

}  // namespace lockstep
