#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/export.h"

namespace lockstep {

/// Which engine moves data between workers. Replicas of one process share their memory, so there it has no effect but a line
/// in the log. Auto gives the same bits for any number of workers; Ring is Gloo's ring, which adds up in an order of its own.
/// Nccl needs GPUs and a build with LOCKSTEP_NCCL.
enum class Implementation { Auto, Ring, Nccl };

LOCKSTEP_EXPORT std::string_view to_string(Implementation implementation);  ///< "AUTO", "RING", "NCCL"

/// Reads "auto", "ring" or "nccl" in capitals or not.
LOCKSTEP_EXPORT Implementation parse_implementation(std::string_view name);

/// How a collective is carried out; never what it computes.
///
///     context.all_reduce(ReduceOp::Sum, gradients, {.bytes_per_pack = 50 << 20, .timeout_seconds = 120})
struct CommunicationOptions {
  /// Tensors travel in packs of about this size. 0: all in one; gradients between workers in packs of 1 MB.
  std::int64_t bytes_per_pack = 0;
  /// Give up after this long. 0: no limit; unset: none within a process, ten minutes between workers.
  std::optional<double> timeout_seconds;
  Implementation implementation = Implementation::Auto;  ///< the engine that carries the data

  bool operator==(const CommunicationOptions&) const = default;
};

/// The options themselves, or InvalidArgument if a value makes no sense.
LOCKSTEP_EXPORT CommunicationOptions validated(const CommunicationOptions& options);

/// `base`, with every field replaced that differs from the default in `other`. So the options of one call stand above
/// those of the strategy, but a call cannot go back from Ring to Auto.
LOCKSTEP_EXPORT CommunicationOptions merge(const CommunicationOptions& base, const CommunicationOptions& other);

/// The end of a wait that begins now.
LOCKSTEP_EXPORT Deadline deadline_of(const CommunicationOptions& options);

}  // namespace lockstep
