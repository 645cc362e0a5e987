#include "lockstep/comm/engine/tcp/job.h"

#include <limits>
#include <numeric>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/status.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {
namespace {

[[noreturn]] void refuse(const Job& job, const std::string& what) {
  throw Failure(Code::InvalidArgument, errors::kBadOption,
                {.what = str(to_string(job.kind), " ", what),
                 .where = job.name,
                 .help = "see the fields of lockstep::Collective for what each kind needs"});
}

void check_arrays(const Job& job, int rank, int replicas) {
  const auto require = [&](std::size_t inputs, bool has_output) {
    if (job.inputs.size() != inputs)
      refuse(job, str("needs ", counted(static_cast<long long>(inputs), "input"), ", got ", job.inputs.size()));
    if (has_output && job.outputs.empty()) refuse(job, "needs an output");
  };
  switch (job.kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::ReduceScatter: require(static_cast<std::size_t>(replicas), true); break;
    case CollectiveKind::Broadcast: require(rank == job.root ? 1 : 0, rank != job.root); break;
    case CollectiveKind::AllGather: require(1, true); break;
    case CollectiveKind::Barrier: require(0, false); break;
  }
}

}  // namespace

Job make_job(const lockstep_collective& collective, int rank, int workers, int replicas, std::uint64_t sequence) {
  Job job;
  job.kind = static_cast<CollectiveKind>(collective.kind);
  job.dtype = static_cast<Dtype>(collective.dtype);
  job.implementation = static_cast<Implementation>(collective.implementation);
  job.root = collective.root;
  job.elements = collective.elements;
  job.inputs.assign(collective.inputs, collective.inputs + collective.input_count);
  job.outputs.assign(collective.outputs, collective.outputs + collective.output_count);
  if (collective.counts != nullptr) job.counts.assign(collective.counts, collective.counts + workers);
  if (collective.name != nullptr) job.name = collective.name;

  const auto reduce = static_cast<ReduceOp>(collective.reduce);
  if (reduce == ReduceOp::Mean) job.divisor = static_cast<std::int64_t>(workers) * replicas;
  if (job.reduces()) check_ordered_sum(job.dtype, 2, 1, job.divisor);
  if (job.root < 0 || job.root >= workers) refuse(job, str("needs a root below ", workers, ", got ", job.root));
  if (size_of(job.dtype) == 0 || job.elements > std::numeric_limits<std::size_t>::max() / size_of(job.dtype) / 2)
    refuse(job, str("of ", job.elements, " elements is too large"));
  check_arrays(job, rank, replicas);
  if (job.kind == CollectiveKind::AllGather && job.counts.empty()) refuse(job, "needs the counts of all workers");
  if (!job.counts.empty() && std::accumulate(job.counts.begin(), job.counts.end(), std::uint64_t{0}) != job.elements)
    refuse(job, "needs counts that add up to `elements`");
  if (job.implementation == Implementation::Nccl)
    refuse(job, "by NCCL needs GPU memory; this engine is for CPU memory");
  if (job.implementation == Implementation::Ring && job.kind != CollectiveKind::AllReduce)
    job.implementation = Implementation::Auto;

  job.fingerprint = fingerprint_of({.kind = job.kind,
                                    .dtype = job.dtype,
                                    .elements = job.elements,
                                    .reduce = reduce,
                                    .root = job.root,
                                    .counts = job.counts,
                                    .shape = {collective.shape, static_cast<std::size_t>(collective.shape_size)},
                                    .name = job.name,
                                    .implementation = job.implementation},
                                   sequence);
  return job;
}

}  // namespace lockstep::engine
