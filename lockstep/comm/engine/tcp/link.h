#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "lockstep/comm/engine/tcp/socket.h"

namespace lockstep::engine {

enum class MessageKind : std::uint16_t {
  Frame = 1,   ///< a fingerprint, with the data of a small collective
  Piece = 2,   ///< a chunk of a partial sum, to the owner of the shard
  Result = 3,  ///< a chunk of the result, from the owner
  Leave = 4,   ///< the sender makes no more collectives; `sequence` says how many it has made
  Failed = 5,  ///< the sender gives up; a lockstep_status follows
};

/// Stands before every message. Every field is checked against what the receiver expects at this point.
struct Message {
  MessageKind kind;
  std::uint16_t piece;
  std::uint32_t sequence;  ///< lower half of the collective's number
  std::uint32_t chunk;
  std::uint32_t bytes;  ///< of the body
};
static_assert(sizeof(Message) == 16);

class Link;

/// Says where the body of a message goes.
class Inbox {
 public:
  /// Room for message.bytes, or nullptr if the message has to wait: the link then reads nothing until it is asked
  /// again. Throws for a message that nobody expects.
  virtual void* target(Link& from, const Message& message) = 0;
  virtual void arrived(Link& from, const Message& message) = 0;

 protected:
  ~Inbox() = default;
};

/// The connection to another worker: a queue of messages to send and one message being received. Used by one thread;
/// never blocks.
class Link {
 public:
  Link(Descriptor socket, int rank) : socket_(std::move(socket)), rank_(rank) {}

  int rank() const { return rank_; }
  int socket() const { return socket_.get(); }

  /// Adds a message; the body must stay as it is until the message has left the queue.
  void send(const Message& message, const void* body) { queue_.push_back({message, body, 0}); }
  std::size_t queued() const { return queue_.size(); }
  /// Whether the queue ends at the end of a message that was sent.
  bool between_messages() const { return queue_.empty() || queue_.front().sent == 0; }
  void drop_queue() { queue_.clear(); }

  /// Writes what the socket takes.
  void push();
  /// Reads until nothing is there, a large message has arrived, or one has to wait.
  void pull(Inbox& inbox);

  bool waits() const { return waits_; }  ///< a message waits for room
  bool closed() const { return closed_; }
  const std::string& close_reason() const { return close_reason_; }
  void close() { socket_.close(); }

  /// Bytes that the other machine has not acknowledged yet.
  int unacknowledged() const;

 private:
  struct Outgoing {
    Message message;
    const void* body;
    std::size_t sent;  // header and body
  };

  void note_closed(std::string reason);
  bool begin_message(Inbox& inbox);

  Descriptor socket_;
  int rank_;
  std::deque<Outgoing> queue_;
  Message next_{};  // being read
  std::size_t next_read_ = 0;
  Message incoming_{};         // whose body is being read
  std::byte* body_ = nullptr;  // where the rest of it goes
  std::size_t body_left_ = 0;
  bool in_body_ = false;
  bool waits_ = false;
  bool closed_ = false;
  bool cannot_send_ = false;
  std::string close_reason_;
};

}  // namespace lockstep::engine
