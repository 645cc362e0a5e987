// How the workers of a channel agree on a collective, and small ones that travel within the frames.

#include <algorithm>
#include <cstring>

#include "lockstep/comm/engine/tcp/channel.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {

void Channel::send_frames(const Job& job) {
  const int rank = settings_.rank;
  Frame& own = frames()[rank];
  std::memcpy(own.words.data(), &job.fingerprint, sizeof(Fingerprint));
  ++reached_[rank];
  std::size_t bytes = 0;
  if (job.is_inline && job.reduces()) {
    const SumPlan& plan = settings_.plan;
    for (int piece = plan.first_piece[rank]; piece < plan.first_piece[rank + 1]; ++piece) {
      const IdRange ids = plan.pieces[piece].ids;
      void* const to = own.payload() + bytes;
      ordered_sum(job.dtype, job.inputs.data() + (ids.lo - rank * settings_.replicas), ids.hi - ids.lo, &to, 1,
                  job.elements);
      bytes += job.elements * job.element_bytes();
    }
  } else if (job.is_inline && !job.inputs.empty()) {
    bytes = (job.counts.empty() ? job.elements : job.counts[rank]) * job.element_bytes();
    if (bytes > 0) std::memcpy(own.payload(), job.inputs[0], bytes);
  }
  const Message message{MessageKind::Frame, 0, static_cast<std::uint32_t>(sequence_), 0,
                        static_cast<std::uint32_t>(sizeof(Fingerprint) + bytes)};
  for (const auto& link : links_) {
    link->send(message, own.words.data());
    link->push();
  }
}

void Channel::await_frames(const Job& job) {
  const auto are_here = [&] {
    return late().empty() && std::ranges::all_of(links_, [](const auto& link) { return link->queued() == 0; });
  };
  while (!are_here()) step(&job, true);
  const auto is_equal = [&](const Frame& frame) { return frame.fingerprint() == job.fingerprint; };
  if (std::ranges::all_of(frames(), is_equal)) return;
  std::vector<Fingerprint> all;
  for (const Frame& frame : frames()) all.push_back(frame.fingerprint());
  throw FailedPrecondition(errors::kCollectiveMismatch, compare(all, index_));
}

void Channel::finish_inline(const Job& job) {
  const std::size_t size = job.element_bytes();
  const auto copy = [&](int from, Shard part) {
    for (void* const output : job.outputs)
      if (part.size() > 0)
        std::memcpy(static_cast<std::byte*>(output) + part.begin * size, frames()[from].payload(), part.size() * size);
  };
  if (job.kind == CollectiveKind::Broadcast) copy(job.root, {0, job.elements});
  if (job.kind == CollectiveKind::AllGather)
    for (int rank = 0; rank < settings_.workers; ++rank) copy(rank, job.shards[rank]);
  if (!job.reduces()) return;
  const SumPlan& plan = settings_.plan;
  const Shard part = job.kind == CollectiveKind::AllReduce ? Shard{0, job.elements} : job.shards[settings_.rank];
  std::vector<const void*> values;
  for (int piece = 0; piece < static_cast<int>(plan.pieces.size()); ++piece) {
    const int worker = plan.pieces[piece].worker;
    const auto place = static_cast<std::size_t>(piece - plan.first_piece[worker]);
    values.push_back(frames()[worker].payload() + (place * job.elements + part.begin) * size);
  }
  const std::size_t stride = (settings_.inline_bytes + 63) / 64 * 64;
  finish_sum(plan, job.dtype, std::move(values), scratch_.at_least(plan.steps.size() * stride), stride,
             {job.outputs.begin(), job.outputs.end()}, part.size(), job.divisor);
}

}  // namespace lockstep::engine
