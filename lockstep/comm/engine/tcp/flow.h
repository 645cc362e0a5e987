#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/engine/tcp/job.h"
#include "lockstep/comm/engine/tcp/link.h"

namespace lockstep::engine {

/// Memory kept across collectives: fresh pages cost more than the sums.
class Scratch {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (lines_.size() * sizeof(Line) < bytes) lines_ = std::vector<Line>(bytes / sizeof(Line) + 1);
    return reinterpret_cast<std::byte*>(lines_.data());
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

/// Executes the data part of one collective, once all workers have agreed on it. Each worker owns a shard of the array.
/// All kinds are one scheme: pieces of a shard go to its owner chunk by chunk (partial sums of all workers, or the data
/// of the root), the owner finishes a chunk as soon as it has its pieces, and sends it to all others.
///
///     kind            pieces from   chunks to
///     all-reduce      all           all
///     reduce-scatter  all           none
///     broadcast       root          all but the root
///     all-gather      none          all
///
/// Two hops for any number of workers; the sum of a chunk overlaps with the transfer of others. A worker holds at most
/// kWindow chunks of every piece; links whose next piece has no room wait. That cannot deadlock: pieces are sent
/// without waiting for anything received, and the oldest chunk always has room.
///
/// Between workers of one machine a message may contain only the address of a chunk. The chunk must then stay in place
/// until the reader reports that it has read it.
class Flow {
 public:
  Flow(const Settings& settings, const Job& job, Scratch& scratch);

  /// Adds the next message for this worker to its queue if the queue is short; false if there is none to add now.
  bool feed(Link& link);
  /// Finishes chunks with all their pieces; false if there was none.
  bool advance();
  /// Whether everything has been received and summed, and everything to send is queued.
  bool is_done() const;
  /// Copies to the outputs beyond the first.
  void finish();

  /// As Inbox::target, for all messages.
  void* target(int from, const Message& message);
  void arrived(int from, const Message& message);

  /// Workers that still have to send something.
  std::vector<int> awaited() const;

 private:
  static constexpr std::size_t kWindow = 4;
  static constexpr std::size_t kQueue = 2;      // messages of a link that wait to be sent
  static constexpr std::size_t kSendSlots = 3;  // kQueue, and the one being made

  struct Peer {
    std::size_t pieces_sent = 0, pieces = 0;
    std::size_t chunks_sent = 0, chunks = 0;  // chunks of the own shard: finished, sent to this worker
    std::size_t results = 0;                  // chunks of its shard still to come
    std::size_t pieces_awaited = 0;
    bool reads = false, has_taken = false;  // it reads this worker's memory in place, and has finished
    bool is_read = false, is_told = false;  // its memory is read in place, and it was told that this is finished

    bool has_sent_all() const { return results == 0 && pieces_awaited == 0; }
  };

  void prepare_own_shard();
  std::size_t chunks_of(int worker) const;
  std::size_t bytes_at(int worker, std::size_t chunk) const;
  std::size_t first_byte(int worker, std::size_t chunk) const;
  std::byte* output(std::size_t offset) const { return static_cast<std::byte*>(job_.outputs[0]) + offset; }
  const std::byte* piece_data(int piece, int worker, std::size_t chunk, std::byte* room) const;
  std::byte* slot(std::size_t chunk, int piece) const;

  const Settings& settings_;
  const Job& job_;
  const SumPlan& plan_ = settings_.plan;
  const int rank_ = settings_.rank;
  const std::size_t element_bytes_ = job_.element_bytes();
  std::size_t chunk_elements_;
  std::size_t chunk_bytes_;
  int own_pieces_ = 0;
  const int source_ = job_.kind == CollectiveKind::Broadcast ? job_.root : -1;  // the root of a broadcast
  std::vector<Peer> peers_ = std::vector<Peer>(job_.shards.size());             // by rank
  std::byte* received_ = nullptr;                                               // kWindow chunks of every piece
  std::byte* values_ = nullptr;                                                 // one chunk of each step's sum
  std::byte* sending_ = nullptr;                                                // kSendSlots chunks for each worker
  std::size_t sending_bytes_ = 0;
  const std::byte* own_shard_ = nullptr;  // where the finished chunks of the own shard are
  std::size_t ready_ = 0;                 // finished chunks of the own shard
  std::size_t arrivals_[kWindow] = {};    // pieces of each chunk of the window
};

}  // namespace lockstep::engine
