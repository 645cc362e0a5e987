#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/dtype.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/values/indexed_slices.h"

// Collectives of tensors between workers, by one thread of each. What `name` says is compared between workers, together with
// the place of the program's call.
namespace lockstep::workers {

/// Whether a strategy that is alive in this process has several workers. What belongs to no strategy asks.
LOCKSTEP_EXPORT bool are_several();

/// What the engine adds up: an array per local replica, and where the result goes.
struct SumOfArrays {
  Dtype dtype = Dtype::Float32;
  at::IntArrayRef shape = {};
  std::vector<const void*> inputs = {};
  std::vector<void*> outputs = {};
};

/// All sums travel at the same time. Mean divides floating types by the replicas of all workers; integers stay sums.
void all_reduce(WorkerGroup& group, ReduceOp op, const std::vector<SumOfArrays>& sums, std::string_view name,
                const CommunicationOptions& options);

/// The sum or mean over all replicas of all workers; `components`: one for each local replica, of equal form.
at::Tensor all_reduce(WorkerGroup& group, ReduceOp op, const std::vector<at::Tensor>& components, std::string_view name,
                      const CommunicationOptions& options);

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

/// The chief's texts, on every worker.
using Texts = std::vector<std::string>;
Texts broadcast_texts(WorkerGroup& group, const Texts& texts, std::string_view name, const Deadline& deadline);
/// Those of each worker.
std::vector<Texts> all_gather_texts(WorkerGroup& group, const Texts& mine, std::string_view name,
                                    const Deadline& deadline);

/// Sums of numbers over all workers that are under way. The end is awaited at the latest when this object goes, so that
/// a program which no longer wants them leaves nothing behind.
class PendingSums {
 public:
  PendingSums(WorkerGroup& group, std::vector<std::int64_t> mine, std::string_view name, const Deadline& deadline);
  ~PendingSums();
  PendingSums(const PendingSums&) = delete;
  PendingSums& operator=(const PendingSums&) = delete;

  std::vector<std::int64_t> wait();  ///< once

 private:
  std::weak_ptr<WorkerGroup> group_;  ///< once it is gone, nothing is under way
  std::vector<std::int64_t> mine_, nothing_, sums_;
  std::string name_;
  WorkerGroup::Ticket ticket_;
  bool is_awaited_ = false;
};

/// The sum of a number per worker.
std::int64_t sum(WorkerGroup& group, std::int64_t value, std::string_view name, const Deadline& deadline);

}  // namespace lockstep::workers
