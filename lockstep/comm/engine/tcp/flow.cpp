#include "lockstep/comm/engine/tcp/flow.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/status.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {

std::byte* Scratch::at_least(std::size_t bytes) {
  if (size_ < bytes) {
    data_.reset();
    size_ = 0;
    data_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(64))));
    size_ = bytes;
  }
  return data_.get();
}

Flow::Flow(const FlowSettings& settings, const Job& job, Scratch& scratch)
    : settings_(settings),
      job_(job),
      rank_(settings.rank),
      reduces_(job.reduces()),
      shards_(job.shards(settings.workers)),
      element_bytes_(size_of(job.dtype)),
      peers_(static_cast<std::size_t>(settings.workers)),
      arrivals_(kWindow, 0) {
  std::size_t largest = 1;
  for (const Shard& shard : shards_) largest = std::max(largest, shard.size());
  chunk_elements_ = std::min(settings.chunk_bytes / element_bytes_, largest);
  chunk_bytes_ = (chunk_elements_ * element_bytes_ + 63) / 64 * 64;
  if (job.kind == CollectiveKind::Broadcast) source_ = job.root;
  if (reduces_) own_pieces_ = settings.plan.first_piece[rank_ + 1] - settings.plan.first_piece[rank_];
  plan_peers();
  lay_out(scratch);
  copy_own_part();
}

void Flow::plan_peers() {
  const bool publishes = job_.kind != CollectiveKind::ReduceScatter;
  for (int worker = 0; worker < settings_.workers; ++worker) {
    if (worker == rank_) continue;
    Peer& peer = peers_[worker];
    if (reduces_) {
      peer.pieces = chunks_of(worker) * static_cast<std::size_t>(own_pieces_);
      const auto theirs = settings_.plan.first_piece[worker + 1] - settings_.plan.first_piece[worker];
      peer.pieces_awaited = chunks_of(rank_) * static_cast<std::size_t>(theirs);
    }
    if (rank_ == source_) peer.pieces = chunks_of(worker);
    if (worker == source_) peer.pieces_awaited = chunks_of(rank_);
    if (publishes && worker != source_) peer.chunks = chunks_of(rank_);
    if (publishes && rank_ != source_) peer.results = chunks_of(worker);
  }
}

void Flow::lay_out(Scratch& scratch) {
  if (!reduces_) return;
  const std::size_t pieces = settings_.plan.pieces.size();
  const std::size_t steps = settings_.plan.steps.size();
  const std::size_t slots = own_pieces_ == static_cast<int>(job_.inputs.size()) ? 0 : kSendSlots * shards_.size();
  received_ = scratch.at_least((kWindow * pieces + steps + slots) * chunk_bytes_);
  values_ = received_ + kWindow * pieces * chunk_bytes_;
  sending_ = values_ + steps * chunk_bytes_;
}

void Flow::copy_own_part() {
  const Shard own = shards_[rank_];
  if (job_.kind == CollectiveKind::AllGather || rank_ == source_) {
    const auto* from = static_cast<const std::byte*>(job_.inputs[0]);
    const bool gathers = job_.kind == CollectiveKind::AllGather;
    const std::size_t bytes = (gathers ? own.size() : job_.elements) * element_bytes_;
    for (void* const output : job_.outputs) {
      std::byte* const to = static_cast<std::byte*>(output) + (gathers ? own.begin * element_bytes_ : 0);
      if (to != from && bytes > 0) std::memcpy(to, from, bytes);
    }
    own_shard_ = gathers ? from : from + own.begin * element_bytes_;
    ready_ = chunks_of(rank_);
  } else {
    const std::size_t skipped = job_.kind == CollectiveKind::ReduceScatter ? 0 : own.begin * element_bytes_;
    own_shard_ = static_cast<const std::byte*>(job_.outputs[0]) + skipped;
  }
}

std::size_t Flow::chunks_of(int worker) const {
  return (shards_[worker].size() + chunk_elements_ - 1) / chunk_elements_;
}

std::size_t Flow::bytes_at(int worker, std::size_t chunk) const {
  return std::min(chunk_elements_, shards_[worker].size() - chunk * chunk_elements_) * element_bytes_;
}

std::size_t Flow::first_byte(int worker, std::size_t chunk) const {
  return (shards_[worker].begin + chunk * chunk_elements_) * element_bytes_;
}

std::byte* Flow::slot(std::size_t chunk, int piece) const {
  return received_ + (chunk % kWindow * settings_.plan.pieces.size() + static_cast<std::size_t>(piece)) * chunk_bytes_;
}

// A partial sum of this worker: an input itself if it is of one replica alone, else made in `room`.
const std::byte* Flow::piece_data(int piece, int worker, std::size_t chunk, std::byte* room) const {
  const IdRange ids = settings_.plan.pieces[piece].ids;
  const int first_id = settings_.plan.pieces[settings_.plan.first_piece[rank_]].ids.lo;
  const std::size_t offset = first_byte(worker, chunk);
  if (ids.hi - ids.lo == 1) return static_cast<const std::byte*>(job_.inputs[ids.lo - first_id]) + offset;
  std::vector<const void*> parts;
  for (int id = ids.lo; id < ids.hi; ++id)
    parts.push_back(static_cast<const std::byte*>(job_.inputs[id - first_id]) + offset);
  void* const to = room;
  ordered_sum(job_.dtype, parts.data(), static_cast<int>(parts.size()), &to, 1,
              bytes_at(worker, chunk) / element_bytes_);
  return room;
}

Message Flow::message_of(MessageKind kind, int piece, std::size_t chunk, std::size_t bytes) const {
  return {kind, static_cast<std::uint16_t>(piece), static_cast<std::uint32_t>(job_.fingerprint.sequence),
          static_cast<std::uint32_t>(chunk), static_cast<std::uint32_t>(bytes)};
}

bool Flow::feed(Link& link) {
  const int to = link.rank();
  Peer& peer = peers_[to];
  if (link.queued() >= kQueue) return false;
  // What is finished goes first: the other side can use it at once.
  if (peer.chunks_sent < std::min(ready_, peer.chunks)) {
    const std::size_t chunk = peer.chunks_sent++;
    link.send(message_of(MessageKind::Result, 0, chunk, bytes_at(rank_, chunk)),
              own_shard_ + chunk * chunk_elements_ * element_bytes_);
    return true;
  }
  if (peer.pieces_sent == peer.pieces) return false;
  const std::size_t number = peer.pieces_sent++;
  if (rank_ == source_) {
    link.send(message_of(MessageKind::Piece, 0, number, bytes_at(to, number)),
              static_cast<const std::byte*>(job_.inputs[0]) + first_byte(to, number));
    return true;
  }
  const std::size_t chunk = number / static_cast<std::size_t>(own_pieces_);
  const int piece =
      settings_.plan.first_piece[rank_] + static_cast<int>(number % static_cast<std::size_t>(own_pieces_));
  std::byte* const room = sending_ + (static_cast<std::size_t>(to) * kSendSlots + number % kSendSlots) * chunk_bytes_;
  link.send(message_of(MessageKind::Piece, piece, chunk, bytes_at(to, chunk)), piece_data(piece, to, chunk, room));
  return true;
}

bool Flow::advance() {
  if (!reduces_ || ready_ == chunks_of(rank_)) return false;
  const std::size_t awaited = settings_.plan.pieces.size() - static_cast<std::size_t>(own_pieces_);
  if (arrivals_[ready_ % kWindow] < awaited) return false;
  sum_chunk(ready_);
  arrivals_[ready_ % kWindow] = 0;
  ++ready_;
  return true;
}

void Flow::sum_chunk(std::size_t chunk) {
  const SumPlan& plan = settings_.plan;
  const std::size_t elements = bytes_at(rank_, chunk) / element_bytes_;
  std::vector<const void*> values;
  for (int piece = 0; piece < static_cast<int>(plan.pieces.size()); ++piece) {
    std::byte* const room = slot(chunk, piece);
    values.push_back(plan.pieces[piece].worker == rank_ ? piece_data(piece, rank_, chunk, room) : room);
  }
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    std::vector<const void*> inputs;
    for (const int value : plan.steps[step]) inputs.push_back(values[value]);
    if (step + 1 < plan.steps.size()) {
      void* const to = values_ + step * chunk_bytes_;
      ordered_sum(job_.dtype, inputs.data(), static_cast<int>(inputs.size()), &to, 1, elements);
      values.push_back(to);
      continue;
    }
    const std::size_t offset =
        (own_shard_ - static_cast<const std::byte*>(job_.outputs[0])) + chunk * chunk_elements_ * element_bytes_;
    std::vector<void*> outputs;
    for (void* const output : job_.outputs) outputs.push_back(static_cast<std::byte*>(output) + offset);
    ordered_sum(job_.dtype, inputs.data(), static_cast<int>(inputs.size()), outputs.data(),
                static_cast<int>(outputs.size()), elements, job_.divisor);
  }
}

bool Flow::is_done() const {
  return ready_ == chunks_of(rank_) && std::ranges::all_of(peers_, [](const Peer& peer) {
           return peer.results == 0 && peer.pieces_sent == peer.pieces && peer.chunks_sent == peer.chunks;
         });
}

void Flow::finish() {
  if (job_.kind == CollectiveKind::ReduceScatter || rank_ == source_) return;
  const auto* first = static_cast<const std::byte*>(job_.outputs[0]);
  for (std::size_t k = 1; k < job_.outputs.size(); ++k) {
    auto* const copy = static_cast<std::byte*>(job_.outputs[k]);
    if (copy == first) continue;
    for (int worker = 0; worker < settings_.workers; ++worker) {
      // The sums of the own shard went to all outputs as they were made.
      if (worker == rank_ && job_.kind != CollectiveKind::Broadcast) continue;
      const std::size_t bytes = shards_[worker].size() * element_bytes_;
      if (bytes > 0) std::memcpy(copy + first_byte(worker, 0), first + first_byte(worker, 0), bytes);
    }
  }
}

void* Flow::target(int from, const Message& message) {
  const std::size_t chunk = message.chunk;
  if (message.kind == MessageKind::Result) {
    if (chunk >= chunks_of(from) || peers_[from].results != chunks_of(from) - chunk ||
        message.bytes != bytes_at(from, chunk))
      refuse(from, message);
    return static_cast<std::byte*>(job_.outputs[0]) + first_byte(from, chunk);
  }
  if (peers_[from].pieces_awaited == 0 || chunk >= chunks_of(rank_) || chunk < ready_ ||
      message.bytes != bytes_at(rank_, chunk))
    refuse(from, message);
  if (from == source_) return static_cast<std::byte*>(job_.outputs[0]) + first_byte(rank_, chunk);
  if (message.piece >= settings_.plan.pieces.size() || settings_.plan.pieces[message.piece].worker != from)
    refuse(from, message);
  return chunk < ready_ + kWindow ? slot(chunk, message.piece) : nullptr;
}

void Flow::arrived(int from, const Message& message) {
  if (message.kind == MessageKind::Result) {
    --peers_[from].results;
    return;
  }
  --peers_[from].pieces_awaited;
  if (from == source_) {
    ++ready_;
  } else {
    ++arrivals_[message.chunk % kWindow];
  }
}

std::vector<int> Flow::awaited() const {
  std::vector<int> ranks;
  for (int worker = 0; worker < settings_.workers; ++worker)
    if (peers_[worker].results > 0 || peers_[worker].pieces_awaited > 0) ranks.push_back(worker);
  return ranks;
}

void Flow::refuse(int from, const Message& message) const {
  throw Failure(Code::DataLoss, errors::kStranger,
                {.what = str("worker ", from, " sent bytes that do not belong to this collective"),
                 .where = describe(job_.fingerprint),
                 .seen = str("message ", static_cast<int>(message.kind), " of collective ", message.sequence,
                             ", piece ", message.piece, ", chunk ", message.chunk, ", ", message.bytes, " bytes"),
                 .help = "this is a bug in Lockstep, or the connection is disturbed: please report it"},
                from);
}

}  // namespace lockstep::engine
