// How the workers of a channel agree on a collective, and small ones that travel within the frames.

#include <algorithm>
#include <cstring>

#include "lockstep/comm/engine/tcp/channel.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {

bool Channel::is_inline(const Job& job) const {
  const std::size_t size = size_of(job.dtype);
  if (job.implementation == Implementation::Ring) return false;
  if (job.reduces())
    return job.elements <= settings_.inline_bytes / size / static_cast<std::size_t>(settings_.flow.plan.most_pieces);
  if (job.kind == CollectiveKind::AllGather)
    return *std::ranges::max_element(job.counts) <= settings_.inline_bytes / size;
  return job.elements <= settings_.inline_bytes / size;
}

std::byte* Channel::payload(int rank) const {
  auto* words = const_cast<std::uint64_t*>(frames_[parity()][static_cast<std::size_t>(rank)].data());
  return reinterpret_cast<std::byte*>(words) + sizeof(Fingerprint);
}

const Fingerprint& Channel::fingerprint(int rank) const {
  return *reinterpret_cast<const Fingerprint*>(frames_[parity()][static_cast<std::size_t>(rank)].data());
}

void Channel::send_frames(const Job& job) {
  const int rank = settings_.flow.rank;
  auto& own = frames_[parity()][static_cast<std::size_t>(rank)];
  std::memcpy(own.data(), &job.fingerprint, sizeof(Fingerprint));
  std::size_t bytes = 0;
  if (is_inline(job)) {
    const std::size_t size = size_of(job.dtype);
    if (job.reduces()) {
      const SumPlan& plan = settings_.flow.plan;
      for (int piece = plan.first_piece[rank]; piece < plan.first_piece[rank + 1]; ++piece) {
        const IdRange ids = plan.pieces[piece].ids;
        void* const to = payload(rank) + bytes;
        ordered_sum(job.dtype, job.inputs.data() + (ids.lo - rank * settings_.replicas), ids.hi - ids.lo, &to, 1,
                    job.elements);
        bytes += job.elements * size;
      }
    } else if (!job.inputs.empty()) {
      bytes = (job.counts.empty() ? job.elements : job.counts[static_cast<std::size_t>(rank)]) * size;
      if (bytes > 0) std::memcpy(payload(rank), job.inputs[0], bytes);
    }
  }
  const Message message{MessageKind::Frame, 0, static_cast<std::uint32_t>(sequence_), 0,
                        static_cast<std::uint32_t>(sizeof(Fingerprint) + bytes)};
  for (const auto& link : links_) {
    if (!link) continue;
    link->send(message, own.data());
    link->push();
  }
}

void Channel::await_frames(const Job& job) {
  const auto& has = has_frame_[parity()];
  const auto all_here = [&] {
    for (const auto& link : links_)
      if (link && (!has[static_cast<std::size_t>(link->rank())] || link->queued() > 0)) return false;
    return true;
  };
  while (!all_here()) step(&job, true);
  std::vector<Fingerprint> all;
  bool equal = true;
  for (int rank = 0; rank < settings_.flow.workers; ++rank) equal = equal && fingerprint(rank) == job.fingerprint;
  if (equal) return;
  for (int rank = 0; rank < settings_.flow.workers; ++rank) all.push_back(fingerprint(rank));
  const Comparison seen = compare(all, settings_.index);
  throw Failure(Code::FailedPrecondition, errors::kCollectiveMismatch, seen.text, seen.culprit);
}

void Channel::finish_inline(const Job& job) {
  const std::size_t size = size_of(job.dtype);
  const int workers = settings_.flow.workers;
  if (job.kind == CollectiveKind::Barrier) return;
  if (job.kind == CollectiveKind::Broadcast) {
    for (void* const output : job.outputs)
      if (job.elements > 0) std::memcpy(output, payload(job.root), job.elements * size);
    return;
  }
  const auto shards = job.shards(workers);
  if (job.kind == CollectiveKind::AllGather) {
    for (void* const output : job.outputs)
      for (int rank = 0; rank < workers; ++rank)
        if (shards[rank].size() > 0)
          std::memcpy(static_cast<std::byte*>(output) + shards[rank].begin * size, payload(rank),
                      shards[rank].size() * size);
    return;
  }
  const SumPlan& plan = settings_.flow.plan;
  Shard part{0, job.elements};
  if (job.kind == CollectiveKind::ReduceScatter) part = shards[static_cast<std::size_t>(settings_.flow.rank)];
  std::vector<const void*> values;
  for (std::size_t piece = 0; piece < plan.pieces.size(); ++piece) {
    const int worker = plan.pieces[piece].worker;
    const std::size_t place = piece - static_cast<std::size_t>(plan.first_piece[worker]);
    values.push_back(payload(worker) + (place * job.elements + part.begin) * size);
  }
  std::byte* const temporary = scratch_.at_least(plan.steps.size() * (settings_.inline_bytes + 64));
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    std::vector<const void*> inputs;
    for (const int value : plan.steps[step]) inputs.push_back(values[value]);
    const bool is_last = step + 1 == plan.steps.size();
    void* const to = temporary + step * ((settings_.inline_bytes + 63) / 64 * 64);
    ordered_sum(job.dtype, inputs.data(), static_cast<int>(inputs.size()), is_last ? job.outputs.data() : &to,
                is_last ? static_cast<int>(job.outputs.size()) : 1, part.size(), is_last ? job.divisor : 1);
    values.push_back(to);
  }
}

}  // namespace lockstep::engine
