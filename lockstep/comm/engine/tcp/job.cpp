#include "lockstep/comm/engine/tcp/job.h"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <numeric>

#include "lockstep/base/text.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {
namespace {

// Limit of the memory for others' pieces at the owner of a shard, however many workers there are.
constexpr std::size_t kMostReceived = 128 << 20;
constexpr std::size_t kLeastChunk = 16 << 10;

[[noreturn]] void refuse(const Collective& collective, const std::string& what) {
  throw InvalidArgument(errors::kBadOption,
                        {.what = str(to_string(collective.kind), " ", what),
                         .where = collective.name,
                         .help = "see the fields of lockstep::Collective for what each kind needs"});
}

void check(const Collective& collective, const Settings& settings) {
  const auto require = [&](std::size_t inputs, bool has_output) {
    if (collective.inputs.size() != inputs)
      refuse(collective,
             str("needs ", counted(static_cast<long long>(inputs), "input"), ", got ", collective.inputs.size()));
    if (has_output && collective.outputs.empty()) refuse(collective, "needs an output");
  };
  const auto& counts = collective.counts;
  const bool is_root = settings.rank == collective.root;
  if (collective.root < 0 || collective.root >= settings.workers)
    refuse(collective, str("needs a root below ", settings.workers, ", got ", collective.root));
  if (size_of(collective.dtype) == 0 ||
      collective.elements > std::numeric_limits<std::size_t>::max() / size_of(collective.dtype) / 2)
    refuse(collective, str("of ", collective.elements, " elements is too large"));
  switch (collective.kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::ReduceScatter: require(static_cast<std::size_t>(settings.replicas), true); break;
    case CollectiveKind::Broadcast: require(is_root ? 1 : 0, !is_root); break;
    case CollectiveKind::AllGather: require(1, true); break;
    case CollectiveKind::Barrier: require(0, false); break;
  }
  if (collective.kind == CollectiveKind::AllGather && counts.empty())
    refuse(collective, "needs the counts of all workers");
  if (!counts.empty() && counts.size() != static_cast<std::size_t>(settings.workers))
    refuse(collective, str("needs one count per worker (", settings.workers, "), got ", counts.size()));
  if (!counts.empty() && std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) != collective.elements)
    refuse(collective, "needs counts that add up to `elements`");
}

}  // namespace

Settings::Settings(const EngineOptions& options) : EngineOptions(options) {
  const std::size_t share = kMostReceived / 4 / plan.pieces.size();
  chunk_bytes = std::min(chunk_bytes, std::max(kLeastChunk, share)) / 64 * 64;
}

Job::Job(const Collective& collective, const Settings& settings, std::uint64_t sequence, Deadline limit)
    : Collective(collective), deadline(limit) {
  check(collective, settings);
  if (reduce == ReduceOp::Mean) divisor = static_cast<std::int64_t>(settings.workers) * settings.replicas;
  if (reduces()) check_ordered_sum(dtype, 2, 1, divisor);
  if (kind != CollectiveKind::AllReduce) implementation = Implementation::Auto;
  if (limit.is_default() && settings.call_seconds > 0)
    deadline = Deadline::after(std::chrono::duration<double>(settings.call_seconds));

  shards = shards_of(elements, counts, settings.workers);
  const std::size_t most = kind == CollectiveKind::AllGather ? *std::ranges::max_element(counts) : elements;
  const auto pieces = static_cast<std::size_t>(reduces() ? settings.plan.most_pieces : 1);
  is_inline = most <= settings.inline_bytes / element_bytes() / pieces && implementation != Implementation::Ring;

  fingerprint = fingerprint_of(*this, sequence);
}

std::string Job::log_line() const {
  const auto milliseconds = [](Clock::duration time) {
    return str(std::fixed, std::setprecision(3), std::chrono::duration<double, std::milli>(time).count(), " ms");
  };
  const std::string state =
      is_done() ? (error ? "failed after " : "took ") + milliseconds(ended - began) : "not finished";
  return str("#", fingerprint.sequence, " ", milliseconds(Clock::now() - began), " ago, ", state, ": ",
             describe(fingerprint));
}

}  // namespace lockstep::engine
