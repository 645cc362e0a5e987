#include "lockstep/comm/engine/tcp/flow.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {

Flow::Flow(const Settings& settings, const Job& job, Scratch& scratch) : settings_(settings), job_(job) {
  std::size_t largest = 1;
  for (const Shard& shard : job_.shards) largest = std::max(largest, shard.size());
  chunk_elements_ = std::min(settings.chunk_bytes / element_bytes_, largest);
  chunk_bytes_ = (chunk_elements_ * element_bytes_ + 63) / 64 * 64;
  if (job.reduces()) {
    own_pieces_ = plan_.first_piece[rank_ + 1] - plan_.first_piece[rank_];
    sending_bytes_ = own_pieces_ == settings.replicas ? 0 : kSendSlots * job_.shards.size() * chunk_bytes_;
    received_ = scratch.at_least((kWindow * plan_.pieces.size() + plan_.steps.size()) * chunk_bytes_ + sending_bytes_);
    values_ = received_ + kWindow * plan_.pieces.size() * chunk_bytes_;
    sending_ = values_ + plan_.steps.size() * chunk_bytes_;
  }
  const auto pieces_of = [&](int worker) -> std::size_t {
    if (job_.reduces()) return static_cast<std::size_t>(plan_.first_piece[worker + 1] - plan_.first_piece[worker]);
    return worker == source_ ? 1 : 0;
  };
  const auto reads = [&](int worker) { return job_.kind != CollectiveKind::ReduceScatter && worker != source_; };
  for (int worker = 0; worker < settings_.workers; ++worker) {
    if (worker == rank_) continue;
    peers_[worker] = {.pieces = chunks_of(worker) * pieces_of(rank_),
                      .chunks = reads(worker) ? chunks_of(rank_) : 0,
                      .results = reads(rank_) ? chunks_of(worker) : 0,
                      .pieces_awaited = chunks_of(rank_) * pieces_of(worker)};
  }
  prepare_own_shard();
}

// Finished chunks are in the input if the worker need not wait for any, otherwise in the output.
void Flow::prepare_own_shard() {
  const bool gathers = job_.kind == CollectiveKind::AllGather;
  const std::size_t offset = job_.kind == CollectiveKind::ReduceScatter ? 0 : first_byte(rank_, 0);
  if (!gathers && rank_ != source_) {
    own_shard_ = output(offset);
    return;
  }
  const auto* from = static_cast<const std::byte*>(job_.inputs[0]);
  const std::size_t bytes = (gathers ? job_.shards[rank_].size() : job_.elements) * element_bytes_;
  std::byte* const to = job_.outputs.empty() ? nullptr : output(gathers ? offset : 0);
  if (to != nullptr && to != from && bytes > 0) std::memcpy(to, from, bytes);
  own_shard_ = gathers ? from : from + offset;
  ready_ = chunks_of(rank_);
}

std::size_t Flow::chunks_of(int worker) const {
  return (job_.shards[worker].size() + chunk_elements_ - 1) / chunk_elements_;
}

std::size_t Flow::bytes_at(int worker, std::size_t chunk) const {
  return std::min(chunk_elements_, job_.shards[worker].size() - chunk * chunk_elements_) * element_bytes_;
}

std::size_t Flow::first_byte(int worker, std::size_t chunk) const {
  return (job_.shards[worker].begin + chunk * chunk_elements_) * element_bytes_;
}

std::byte* Flow::slot(std::size_t chunk, int piece) const {
  return received_ + (chunk % kWindow * plan_.pieces.size() + static_cast<std::size_t>(piece)) * chunk_bytes_;
}

// A partial sum of this worker: its input if it has only one replica, otherwise made in `room`.
const std::byte* Flow::piece_data(int piece, int worker, std::size_t chunk, std::byte* room) const {
  const IdRange ids = plan_.pieces[piece].ids;
  std::vector<const void*> parts;
  for (int id = ids.lo; id < ids.hi; ++id)
    parts.push_back(static_cast<const std::byte*>(job_.inputs[id - rank_ * settings_.replicas]) +
                    first_byte(worker, chunk));
  if (parts.size() == 1) return static_cast<const std::byte*>(parts[0]);
  void* const to = room;
  ordered_sum(job_.dtype, parts.data(), static_cast<int>(parts.size()), &to, 1,
              bytes_at(worker, chunk) / element_bytes_);
  return room;
}

bool Flow::feed(Link& link) {
  const int to = link.rank();
  Peer& peer = peers_[to];
  if (link.queued() >= kQueue) return false;
  const auto sequence = static_cast<std::uint32_t>(job_.fingerprint.sequence);
  if (peer.is_read && !peer.is_told && peer.has_sent_all()) {
    peer.is_told = true;
    link.send({MessageKind::Taken, 0, sequence, 0, 0}, nullptr);
    return true;
  }
  const bool is_result = peer.chunks_sent < std::min(ready_, peer.chunks);
  int piece = 0;
  std::size_t chunk = 0;
  const std::byte* data = nullptr;
  // Finished chunks go first: the other side can use them at once.
  if (is_result) {
    chunk = peer.chunks_sent++;
    data = own_shard_ + chunk * chunk_elements_ * element_bytes_;
  } else if (peer.pieces_sent == peer.pieces) {
    return false;
  } else if (rank_ == source_) {
    chunk = peer.pieces_sent++;
    data = static_cast<const std::byte*>(job_.inputs[0]) + first_byte(to, chunk);
  } else {
    const std::size_t number = peer.pieces_sent++;
    chunk = number / static_cast<std::size_t>(own_pieces_);
    piece = plan_.first_piece[rank_] + static_cast<int>(number % static_cast<std::size_t>(own_pieces_));
    std::byte* const room = sending_ + (static_cast<std::size_t>(to) * kSendSlots + number % kSendSlots) * chunk_bytes_;
    data = piece_data(piece, to, chunk, room);
  }
  const bool stays = data < sending_ || data >= sending_ + sending_bytes_;
  peer.reads = peer.reads || (stays && link.reads_in_place());
  link.send({is_result ? MessageKind::Result : MessageKind::Piece, static_cast<std::uint16_t>(piece), sequence,
             static_cast<std::uint32_t>(chunk), static_cast<std::uint32_t>(bytes_at(is_result ? rank_ : to, chunk))},
            data, stays);
  return true;
}

bool Flow::advance() {
  if (!job_.reduces() || ready_ == chunks_of(rank_)) return false;
  std::size_t& arrived = arrivals_[ready_ % kWindow];
  if (arrived < plan_.pieces.size() - static_cast<std::size_t>(own_pieces_)) return false;
  std::vector<const void*> values;
  for (int piece = 0; piece < static_cast<int>(plan_.pieces.size()); ++piece) {
    std::byte* const room = slot(ready_, piece);
    values.push_back(plan_.pieces[piece].worker == rank_ ? piece_data(piece, rank_, ready_, room) : room);
  }
  void* const to = output(own_shard_ - output(0) + ready_ * chunk_elements_ * element_bytes_);
  finish_sum(plan_, job_.dtype, std::move(values), values_, chunk_bytes_, {to},
             bytes_at(rank_, ready_) / element_bytes_, job_.divisor);
  arrived = 0;
  ++ready_;
  return true;
}

bool Flow::is_done() const {
  return ready_ == chunks_of(rank_) && std::ranges::all_of(peers_, [](const Peer& peer) {
           return peer.results == 0 && peer.pieces_sent == peer.pieces && peer.chunks_sent == peer.chunks &&
                  peer.reads == peer.has_taken && peer.is_read == peer.is_told;
         });
}

void Flow::finish() {
  const bool scatters = job_.kind == CollectiveKind::ReduceScatter;
  const std::size_t bytes = (scatters ? job_.shards[rank_].size() : job_.elements) * element_bytes_;
  for (void* const each : job_.outputs)
    if (each != job_.outputs[0] && bytes > 0) std::memcpy(each, job_.outputs[0], bytes);
}

void* Flow::target(int from, const Message& message) {
  const std::size_t chunk = message.chunk;
  const Peer& peer = peers_[from];
  if (message.kind == MessageKind::Taken) {
    if (!peer.reads || peer.has_taken || message.bytes != 0) refuse(from, message);
    return &peers_;  // no bytes follow
  }
  const bool is_result = message.kind == MessageKind::Result;
  const int owner = is_result ? from : rank_;
  if (chunk >= chunks_of(owner) || message.bytes != bytes_at(owner, chunk)) refuse(from, message);
  if (is_result) {
    if (peer.results != chunks_of(from) - chunk) refuse(from, message);
    return output(first_byte(from, chunk));
  }
  if (peer.pieces_awaited == 0 || chunk < ready_) refuse(from, message);
  if (from == source_) return output(first_byte(rank_, chunk));
  if (message.piece >= plan_.pieces.size() || plan_.pieces[message.piece].worker != from) refuse(from, message);
  return chunk < ready_ + kWindow ? slot(chunk, message.piece) : nullptr;
}

void Flow::arrived(int from, const Message& message) {
  Peer& peer = peers_[from];
  if (message.address != 0) peer.is_read = true;
  if (message.kind == MessageKind::Taken) {
    peer.has_taken = true;
  } else if (message.kind == MessageKind::Result) {
    --peer.results;
  } else {
    --peer.pieces_awaited;
    ++(from == source_ ? ready_ : arrivals_[message.chunk % kWindow]);
  }
}

std::vector<int> Flow::awaited() const {
  std::vector<int> ranks;
  for (int worker = 0; worker < settings_.workers; ++worker)
    if (!peers_[worker].has_sent_all() || peers_[worker].reads != peers_[worker].has_taken) ranks.push_back(worker);
  return ranks;
}

}  // namespace lockstep::engine
