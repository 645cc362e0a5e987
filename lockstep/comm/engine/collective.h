#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/dtype.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep {

enum class CollectiveKind { AllReduce, ReduceScatter, Broadcast, AllGather, Barrier };

constexpr std::string_view to_string(CollectiveKind kind) {
  constexpr std::string_view kNames[] = {"all-reduce", "reduce-scatter", "broadcast", "all-gather", "barrier"};
  const auto number = static_cast<std::size_t>(kind);  // sent by another worker, so it may have any value
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

/// Arrays of at most this size are sent in one message.
inline constexpr std::size_t kInlineBytes = 8 << 10;

/// One worker's part of a collective. All workers must describe it alike; any difference is an error on every worker
/// before data is used. The arrays are the caller's; everything else is owned.
struct Collective {
  CollectiveKind kind = CollectiveKind::Barrier;
  Dtype dtype = Dtype::Float32;

  /// Elements of the whole array to reduce or broadcast; for AllGather of the result, the sum of `counts`.
  std::size_t elements = 0;

  /// AllReduce, ReduceScatter: one array per local replica, in order of ids. Broadcast: one, only on the root.
  /// AllGather: one, with counts[rank] elements.
  std::vector<const void*> inputs = {};

  /// Destination of the result; several arrays get copies. May be inputs. ReduceScatter: counts[rank] elements.
  std::vector<void*> outputs = {};

  ReduceOp reduce = ReduceOp::Sum;  ///< Mean divides by the number of replicas of all workers
  int root = 0;                     ///< Broadcast: the worker that has the data

  /// Elements of each worker: needed for AllGather; ReduceScatter and AllReduce cut evenly without it.
  std::vector<std::uint64_t> counts = {};

  /// Compared between workers, and shown if different. AllGather: leave out what may differ between workers.
  std::vector<std::int64_t> shape = {};
  std::string name = {};  ///< name of the variable or bucket, or the place of the call

  /// Ring: Gloo's own all-reduce, with a different order of summation. Otherwise the one order of reduction_tree.h.
  Implementation implementation = Implementation::Auto;
};

}  // namespace lockstep
