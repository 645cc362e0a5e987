#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/reducible.h"

// Collectives of tensors between workers, by one thread of each. What `name` says is compared between workers, together with
// the place of the program's call.
namespace lockstep::workers {

/// Whether a strategy that is alive in this process has several workers. What belongs to no strategy asks.
LOCKSTEP_EXPORT bool are_several();

/// Adds up arrays of the engine's types; `sums` have their `dtype`, `shape`, `inputs` and `outputs`. All travel at the same
/// time. Mean divides floating types by the replicas of all workers; integers stay sums.
void all_reduce(WorkerGroup& group, ReduceOp op, std::vector<Collective> sums, std::string_view name,
                const CommunicationOptions& options);

/// The sum or mean over all replicas of all workers; `components`: one for each local replica, of equal form.
at::Tensor all_reduce(WorkerGroup& group, ReduceOp op, const std::vector<at::Tensor>& components, std::string_view name,
                      const CommunicationOptions& options);

/// The sum or mean of one leaf: a tensor from every replica, or sparse rows from every replica. With a null `group` only the
/// components of this process are reduced.
ReducibleLeaf reduce_leaf(WorkerGroup* group, ReduceOp op, const std::vector<ReducibleLeaf>& components,
                          std::string_view name, const CommunicationOptions& options);

/// The tensors of all workers, concatenated as lists; each worker brings as many as the others. Forms may differ.
std::vector<at::Tensor> all_gather(WorkerGroup& group, const std::vector<at::Tensor>& mine, std::string_view name,
                                   const Deadline& deadline);
std::vector<IndexedSlices> all_gather(WorkerGroup& group, const std::vector<IndexedSlices>& mine, std::string_view name,
                                      const Deadline& deadline);

/// The numbers of all workers, concatenated; each brings as many as the others.
std::vector<std::int64_t> all_gather(WorkerGroup& group, const std::vector<std::int64_t>& mine, std::string_view name,
                                     const Deadline& deadline);

/// The chief's tensor, on every worker; the others' are not looked at.
at::Tensor broadcast(WorkerGroup& group, const at::Tensor& value, std::string_view name, const Deadline& deadline);

/// The chief's bytes, in the memory that every worker gives.
void broadcast_bytes(WorkerGroup& group, void* data, std::size_t bytes, std::string_view name,
                     const Deadline& deadline);

/// The chief's texts, on every worker.
using Texts = std::vector<std::string>;
Texts broadcast_texts(WorkerGroup& group, const Texts& texts, std::string_view name, const Deadline& deadline);
/// Those of each worker.
std::vector<Texts> all_gather_texts(WorkerGroup& group, const Texts& mine, std::string_view name,
                                    const Deadline& deadline);

/// What every worker describes in its own words, and all must describe alike.
struct Description {
  std::string what;  ///< "model"
  Texts lines;
  int number = errors::kDifferentPrograms;
  std::string help = "run the same program with the same arguments on all workers";
};

/// Throws on every worker if their lines differ: "model of worker 1 differs from that of workers 0 and 2". A collective named
/// after the program's call, so that a worker which calls something else is noticed too.
void require_same(WorkerGroup& group, const Description& mine, std::string_view call, const Deadline& deadline);

/// Begins to add up numbers over all workers; the sums come from calling what it returns, once. Their end is awaited at the
/// latest when that goes, so that a program which no longer wants them leaves nothing behind.
std::function<std::vector<std::int64_t>()> begin_sums(WorkerGroup& group, std::vector<std::int64_t> mine,
                                                      std::string_view name, const Deadline& deadline);

/// The sum of a number per worker.
std::int64_t sum(WorkerGroup& group, std::int64_t value, std::string_view name, const Deadline& deadline);

}  // namespace lockstep::workers
