#include "lockstep/strategy/collectives.h"

#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/leaf_tensors.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/worker_collectives.h"

namespace lockstep::local {
namespace {

/// Below this many bytes a second barrier's worth of sharing costs more than adding everything twice.
constexpr std::size_t kSmallBytes = 32 * 1024;
/// Shards are cut at multiples of this many elements.
constexpr std::size_t kShardElements = 1024;

template <class T>
using Small = c10::SmallVector<T, 4>;

struct DenseLeaf {
  at::Tensor input;   ///< contiguous
  at::Tensor output;  ///< the sum, once all have met
  Dtype dtype;
};

/// What a replica shows to the others.
struct Contribution {
  ReduceOp op = ReduceOp::Sum;
  std::int64_t axis = 0;
  const std::string& structure;
  Small<DenseLeaf> dense = {};                    ///< what the engine adds, in order
  Small<const ReducibleLeaf*> others = {};        ///< sparse rows, rare types: each replica combines these for itself
  Small<bool> is_dense = {};                      ///< per leaf: in which of the two it is
  mutable Leaves combined = {};                   ///< what became of `others`
  mutable std::vector<std::int64_t> begins = {};  ///< all_gather: where this replica's part of each begins

  void add(DenseLeaf leaf) {
    dense.push_back(std::move(leaf));
    is_dense.push_back(true);
  }
  void add(const ReducibleLeaf& leaf) {
    others.push_back(&leaf);
    is_dense.push_back(false);
  }
};

const Contribution& contribution_of(const Seat& seat, int replica) {
  return *static_cast<const Contribution*>(seat.payload_of(replica));
}

std::string describe(const at::Tensor& tensor) {
  const std::string form = lockstep::str(tensor.scalar_type(), tensor.sizes());
  return tensor.is_cpu() && tensor.layout() == at::kStrided
             ? form
             : lockstep::str(form, " (", tensor.layout(), ", ", tensor.device(), ")");
}

std::string describe_leaf(const Contribution& from, std::size_t leaf) {
  const auto before = static_cast<std::size_t>(std::count(
      from.is_dense.begin(), from.is_dense.begin() + static_cast<std::ptrdiff_t>(leaf), from.is_dense[leaf]));
  if (from.is_dense[leaf]) return describe(from.dense[before].input);
  const auto* tensor = std::get_if<at::Tensor>(from.others[before]);
  return tensor ? describe(*tensor) : "sparse rows";
}

std::string name_of(int replica) { return lockstep::detail::replica_name(static_cast<std::size_t>(replica)); }

[[noreturn]] void throw_mismatch(int number, const char* operation, int replica, const std::string& first,
                                 const std::string& other) {
  throw InvalidArgument(
      number,
      {.what = lockstep::str(number == errors::kShape ? "Shape" : "Type", " mismatch in ", operation,
                             ": values differ between replicas"),
       .where = operation,
       .seen = lockstep::str(name_of(0), " gave ", first, ", ", name_of(replica), " gave ", other),
       .help =
           "give all_reduce equal shapes and types on every replica; pad, convert, or use all_gather for uneven values"});
}

[[noreturn]] void throw_different(const char* what, const char* operation, int replica, const std::string& first,
                                  const std::string& other) {
  throw InvalidArgument(errors::kDifferentCollective,
                        {.what = what,
                         .where = operation,
                         .seen = lockstep::str(name_of(0), ": ", first, ", ", name_of(replica), ": ", other),
                         .help = "make the same calls in the same order on every replica"});
}

/// Every replica compares everybody with replica 0, so all of them find the same difference.
void check_agreement(const Seat& seat, const char* operation) {
  const Contribution& first = contribution_of(seat, 0);
  for (int k = 1; k < seat.size(); ++k) {
    const Contribution& other = contribution_of(seat, k);
    if (other.op != first.op) {
      throw_different("replicas asked for different reductions", operation, k, std::string(to_string(first.op)),
                      std::string(to_string(other.op)));
    }
    if (other.axis != first.axis) {
      throw_different("replicas gather along different axes", operation, k, std::to_string(first.axis),
                      std::to_string(other.axis));
    }
    if (other.structure != first.structure || other.is_dense.size() != first.is_dense.size()) {
      throw InvalidArgument(errors::kStructure, {.what = "replicas gave different structures",
                                                 .where = operation,
                                                 .seen = lockstep::str(name_of(0), " gave ", first.structure, ", ",
                                                                       name_of(k), " gave ", other.structure),
                                                 .help = "give the same structure on every replica"});
    }
    for (std::size_t i = 0; i < first.is_dense.size(); ++i) {
      if (first.is_dense[i] == other.is_dense[i]) continue;
      throw_mismatch(errors::kDtype, operation, k, describe_leaf(first, i), describe_leaf(other, i));
    }
    for (std::size_t i = 0; i < first.dense.size(); ++i) {
      const at::Tensor& a = first.dense[i].input;
      const at::Tensor& b = other.dense[i].input;
      if (a.sizes() != b.sizes()) throw_mismatch(errors::kShape, operation, k, describe(a), describe(b));
      if (a.scalar_type() != b.scalar_type()) throw_mismatch(errors::kDtype, operation, k, describe(a), describe(b));
    }
  }
}

std::size_t total_bytes(const Contribution& mine) {
  std::size_t bytes = 0;
  for (const auto& leaf : mine.dense) bytes += leaf.input.nbytes();
  return bytes;
}

std::size_t blocks_of(const DenseLeaf& leaf) {
  return (static_cast<std::size_t>(leaf.input.numel()) + kShardElements - 1) / kShardElements;
}

/// The sum of leaf i over this process's replicas, for this one or for all of them.
ArraySum sum_of(const Seat& seat, std::size_t i, std::int64_t divisor, bool to_everybody) {
  ArraySum sum{.dtype = contribution_of(seat, seat.replica()).dense[i].dtype, .divisor = divisor};
  for (int k = 0; k < seat.size(); ++k) {
    const DenseLeaf& leaf = contribution_of(seat, k).dense[i];
    sum.inputs.push_back(leaf.input.const_data_ptr());
    if (to_everybody || k == seat.replica()) sum.outputs.push_back(leaf.output.unsafeGetTensorImpl()->mutable_data());
  }
  return sum;
}

void sum_dense(const Seat& seat, const Contribution& mine) {
  const auto divisor_for = [&](const DenseLeaf& leaf) -> std::int64_t {
    return mine.op == ReduceOp::Mean && is_floating(leaf.dtype) ? seat.size() : 1;
  };
  if (total_bytes(mine) <= kSmallBytes) {
    for (std::size_t i = 0; i < mine.dense.size(); ++i) {
      const auto elements = static_cast<std::size_t>(mine.dense[i].input.numel());
      sum_of(seat, i, divisor_for(mine.dense[i]), /*to_everybody=*/false).add(0, elements);
    }
    return;
  }
  std::size_t all_blocks = 0;
  for (const auto& leaf : mine.dense) all_blocks += blocks_of(leaf);
  const auto size = static_cast<std::size_t>(seat.size());
  const auto replica = static_cast<std::size_t>(seat.replica());
  const std::size_t shard_begin = all_blocks * replica / size;
  const std::size_t shard_end = all_blocks * (replica + 1) / size;
  std::size_t first_block = 0;
  for (std::size_t i = 0; i < mine.dense.size(); ++i) {
    const std::size_t blocks = blocks_of(mine.dense[i]);
    const std::size_t from = std::clamp(shard_begin, first_block, first_block + blocks) - first_block;
    const std::size_t to = std::clamp(shard_end, first_block, first_block + blocks) - first_block;
    if (from < to) {
      const auto elements = static_cast<std::size_t>(mine.dense[i].input.numel());
      sum_of(seat, i, divisor_for(mine.dense[i]), /*to_everybody=*/true)
          .add(from * kShardElements, std::min(to * kShardElements, elements));
    }
    first_block += blocks;
  }
}

/// Leaf i of each replica, which the engine does not add: sparse rows, complex numbers and the like. Those of other GPUs are brought
/// to the calling replica's.
Leaves components_of(const Seat& seat, std::size_t i) {
  const at::Device here = device_of(*contribution_of(seat, seat.replica()).others[i]);
  Leaves components;
  for (int k = 0; k < seat.size(); ++k) {
    components.push_back(map_tensors(*contribution_of(seat, k).others[i],
                                     [&](const at::Tensor& tensor) { return gpu::bring_here(tensor, here); }));
    const auto* const first = std::get_if<at::Tensor>(&components[0]);
    const auto* const other = std::get_if<at::Tensor>(&components.back());
    const auto form_of = [](const at::Tensor* tensor) { return tensor ? describe(*tensor) : "sparse rows"; };
    if ((first == nullptr) != (other == nullptr))
      throw_mismatch(errors::kDtype, "all_reduce", k, form_of(first), form_of(other));
    if (first && first->defined() && other->defined() && first->sizes() != other->sizes())
      throw_mismatch(errors::kShape, "all_reduce", k, describe(*first), describe(*other));
  }
  return components;
}

/// A copy on the GPU of the replica that gets it.
ReducibleLeaf copy_for(const ReducibleLeaf& leaf, at::Device taker) {
  return map_tensors(leaf, [&](const at::Tensor& tensor) {
    return tensor.device() == taker ? tensor.clone() : gpu::bring_here(tensor, taker);
  });
}

/// By the first replica of each worker, for all of its own.
void reduce_between_workers(const Seat& seat, WorkerGroup& workers, const Contribution& mine,
                            const CommunicationOptions& options) {
  std::vector<Collective> sums;
  for (std::size_t i = 0; i < mine.dense.size(); ++i) {
    const ArraySum sum = sum_of(seat, i, /*divisor=*/1, /*to_everybody=*/true);
    // Not in braces: the iterators would be taken for two elements.
    std::vector<const void*> inputs(sum.inputs.begin(), sum.inputs.end());
    std::vector<void*> outputs(sum.outputs.begin(), sum.outputs.end());
    sums.push_back({.dtype = sum.dtype,
                    .inputs = std::move(inputs),
                    .outputs = std::move(outputs),
                    .shape = mine.dense[i].input.sizes().vec()});
  }
  const std::string name = lockstep::str("all_reduce of ", mine.structure);
  workers::all_reduce(workers, mine.op, std::move(sums), name, options);
  for (std::size_t i = 0; i < mine.others.size(); ++i) {
    const ReducibleLeaf sum = workers::reduce_leaf(&workers, mine.op, components_of(seat, i), name, options);
    for (int k = 0; k < seat.size(); ++k) {
      const Contribution& theirs = contribution_of(seat, k);
      theirs.combined.push_back(k == 0 ? sum : copy_for(sum, device_of(*theirs.others[i])));
    }
  }
}

/// Concatenates leaf i of all replicas. Each replica does it for itself; where there are other workers, the first one does it for
/// all replicas of its worker.
void gather(const Seat& seat, WorkerGroup* workers, std::size_t i, std::int64_t axis, const Deadline& deadline) {
  const at::Device here = device_of(*contribution_of(seat, seat.replica()).others[i]);
  std::vector<at::Tensor> parts;
  for (int k = 0; k < seat.size(); ++k) {
    const auto* tensor = std::get_if<at::Tensor>(contribution_of(seat, k).others[i]);
    if (tensor == nullptr) {
      throw Unimplemented(errors::kNotAvailable,
                          {.what = "all_gather does not support IndexedSlices",
                           .where = "all_gather",
                           .help = "gather values and indices separately, or call to_dense() first"});
    }
    parts.push_back(tensor->defined() ? gpu::bring_here(tensor->detach(), here) : *tensor);
  }
  const auto all =
      workers ? workers::all_gather(*workers, parts, lockstep::str("all_gather along ", axis, ", leaf ", i), deadline)
              : parts;
  const at::Tensor whole = concatenate(all, axis);
  std::int64_t begin = 0;
  for (int k = 0; workers && k < workers->rank() * seat.size(); ++k)
    begin += all[static_cast<std::size_t>(k)].size(axis);
  for (int k = 0; k < seat.size(); ++k) {
    const bool is_mine = k == seat.replica();
    if (workers || is_mine) {
      const Contribution& theirs = contribution_of(seat, k);
      theirs.combined.push_back(is_mine ? whole : copy_for(whole, device_of(*theirs.others[i])));
      theirs.begins.push_back(begin);
    }
    begin += parts[static_cast<std::size_t>(k)].size(axis);
  }
}

/// All replicas do `work`, or, where there are other workers, the first one for all.
void meet(Seat& seat, const WorkerGroup* workers, const char* name, const Contribution& mine, FunctionRef<void()> work,
          const Deadline& deadline) {
  if (workers) {
    seat.lead(name, &mine, work, deadline);
  } else {
    seat.exchange(name, &mine, work, deadline);
  }
}

/// Throws unless all replicas call the same all_reduce, then carries it out.
void meet_to_reduce(Seat& seat, WorkerGroup* workers, const Contribution& mine, const CommunicationOptions& options) {
  const auto reduce = [&] {
    check_agreement(seat, "all_reduce");
    if (workers) return reduce_between_workers(seat, *workers, mine, options);
    sum_dense(seat, mine);
    for (std::size_t i = 0; i < mine.others.size(); ++i)
      mine.combined.push_back(workers::reduce_leaf(nullptr, mine.op, components_of(seat, i), "all_reduce", options));
  };
  meet(seat, workers, "all_reduce", mine, reduce, deadline_of(options));
}

/// What the first replica has made for this one on a GPU is in memory of its stream, and used on this one's.
void keep_for_this_replica(const Leaves& leaves) {
  for (const ReducibleLeaf& leaf : leaves) for_each_tensor(leaf, gpu::keep_for_this_stream);
}

DenseLeaf dense_leaf(const at::Tensor& value, Dtype dtype) {
  at::Tensor input = value.detach().contiguous().resolve_neg();
  at::Tensor output = at::empty(input.sizes(), input.options());
  return {std::move(input), std::move(output), dtype};
}

std::optional<Dtype> engine_adds(const at::Tensor& value) {
  return value.is_cpu() && value.layout() == at::kStrided ? engine_dtype(value.scalar_type()) : std::nullopt;
}

at::Tensor finished(const Seat& seat, const WorkerGroup* workers, ReduceOp op, const DenseLeaf& leaf) {
  if (op != ReduceOp::Mean || is_floating(leaf.dtype)) return leaf.output;
  return divide_sum(leaf.output, workers ? workers->all_replicas() : seat.size());
}

}  // namespace

at::Tensor all_reduce(Seat& seat, WorkerGroup* workers, ReduceOp op, const at::Tensor& value,
                      const CommunicationOptions& options) {
  static const std::string& structure =
      *new std::string("tensor");  // never destroyed: threads may outlive static objects
  require_summable(value, "all_reduce");
  const auto dtype = engine_adds(value);
  if (!dtype) return std::get<at::Tensor>(all_reduce(seat, workers, op, Leaves{value}, structure, options)[0]);
  require_op(op, "all_reduce");
  Contribution mine{.op = op, .structure = structure};
  mine.add(dense_leaf(value, *dtype));
  meet_to_reduce(seat, workers, mine, options);
  return finished(seat, workers, op, mine.dense[0]);
}

Leaves all_reduce(Seat& seat, WorkerGroup* workers, ReduceOp op, const Leaves& leaves, const std::string& structure,
                  const CommunicationOptions& options) {
  require_op(op, "all_reduce");
  Contribution mine{.op = op, .structure = structure};
  for (const auto& leaf : leaves) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf);
    if (tensor) require_summable(*tensor, "all_reduce");
    const auto dtype = tensor ? engine_adds(*tensor) : std::nullopt;
    if (dtype) {
      mine.add(dense_leaf(*tensor, *dtype));
    } else {
      mine.add(leaf);
    }
  }
  meet_to_reduce(seat, workers, mine, options);
  if (workers) keep_for_this_replica(mine.combined);

  Leaves results;
  std::size_t next_dense = 0;
  std::size_t next_other = 0;
  for (const bool dense : mine.is_dense) {
    if (dense) {
      results.emplace_back(finished(seat, workers, op, mine.dense[next_dense++]));
    } else {
      results.push_back(std::move(mine.combined[next_other++]));
    }
  }
  return results;
}

Leaves all_gather(Seat& seat, WorkerGroup* workers, const Leaves& leaves, std::int64_t axis,
                  const std::string& structure, std::vector<std::int64_t>& begins, const Deadline& deadline) {
  Contribution mine{.axis = axis, .structure = structure};
  for (const auto& leaf : leaves) mine.add(leaf);
  const auto gather_all = [&] {
    check_agreement(seat, "all_gather");
    for (std::size_t i = 0; i < mine.others.size(); ++i) gather(seat, workers, i, axis, deadline);
  };
  meet(seat, workers, "all_gather", mine, gather_all, deadline);
  if (workers) keep_for_this_replica(mine.combined);
  begins = std::move(mine.begins);
  return std::move(mine.combined);
}

}  // namespace lockstep::local
