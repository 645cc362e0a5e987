#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lockstep/base/descriptor.h"
#include "lockstep/comm/engine/engine.h"

namespace lockstep::engine {

enum class MessageKind : std::uint16_t {
  Frame = 1,   ///< a fingerprint, with the data of a small collective
  Piece = 2,   ///< a chunk of a partial sum, to the owner of the shard
  Result = 3,  ///< a chunk of the result, from the owner
  Taken = 4,   ///< the sender has read everything from the receiver's memory
  Leave = 5,   ///< the sender makes no more collectives; `sequence` is how many it made
  Failed = 6,  ///< the sender gives up; an error follows
  Beat = 7,    ///< empty; the acknowledgement shows that the way is open
};

/// Precedes every message. Every field is checked against the receiver's expectation at this point.
struct Message {
  MessageKind kind;
  std::uint16_t piece;
  std::uint32_t sequence;  ///< lower half of the collective's number
  std::uint32_t chunk;
  std::uint32_t bytes;        ///< size of the body
  std::uint64_t address = 0;  ///< address of the body in the sender's memory; 0: the body follows

  std::size_t following() const { return address == 0 ? bytes : 0; }
};
static_assert(sizeof(Message) == 24);

/// Throws L112: the message is unexpected.
[[noreturn]] void refuse(int from, const Message& message);

/// Reads from another process of this machine; false with `errno` set if the system does not allow it.
bool read_memory(pid_t process, std::uint64_t address, void* to, std::size_t bytes);

/// A connection to another worker.
struct Connection {
  Descriptor socket = {};
  std::string address = {};  ///< address of the other worker's data port
  pid_t neighbour = 0;       ///< if not 0, the process at the other end: both may read each other's memory
};

/// Connects every worker with every other one, once per channel: connections[channel][rank], empty for the own rank.
///
/// The listener is open only meanwhile, at one address and port. A process that connects must present, in one message
/// of fixed size, a random number that the listening worker left in the store for only this engine, and receives its
/// counterpart: port scanners, strangers and workers of an earlier run are dropped and cost a worker nothing. L105
/// names the workers that did not come before the deadline.
std::vector<std::vector<Connection>> connect_mesh(const EngineOptions& options);

class Link;

/// Supplies the destination of a message's body.
class Inbox {
 public:
  /// Memory for message.bytes, or nullptr if the message has to wait: the link then reads nothing until it is asked
  /// again. Throws for an unexpected message.
  virtual void* target(Link& from, const Message& message) = 0;
  virtual void arrived(Link& from, const Message& message) = 0;

 protected:
  ~Inbox() = default;
};

/// The connection to another worker: a queue of messages to send and one message being received. For one thread; never
/// blocks.
class Link {
 public:
  Link(Connection connection, int rank)
      : socket_(std::move(connection.socket)), neighbour_(connection.neighbour), rank_(rank) {}

  int rank() const { return rank_; }
  int socket() const { return socket_.get(); }

  /// Adds a message; the body must not change until the message has left the queue or, with `until_taken`, while the
  /// other worker may read it in place.
  void send(Message message, const void* body, bool until_taken = false) {
    if (closed() || cannot_send_) return;
    if (until_taken && neighbour_ > 0) message.address = reinterpret_cast<std::uintptr_t>(body);
    queue_.push_back({message, body, 0});
  }
  std::size_t queued() const { return queue_.size(); }
  /// Sends this instead of the queued messages, or ends the connection if it is within another message.
  bool tell_last(const Message& message, const void* body);

  /// Writes as much as the socket accepts.
  void push();
  /// Reads until nothing is available, a large message has arrived, or one has to wait.
  void pull(Inbox& inbox);

  bool reads_in_place() const { return neighbour_ > 0; }
  bool waits() const { return waits_; }  ///< a message waits for room
  bool closed() const { return !close_reason_.empty(); }
  const std::string& close_reason() const { return close_reason_; }

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
  pid_t neighbour_;
  int rank_;
  std::deque<Outgoing> queue_;
  Message next_{};  // being read
  std::size_t next_read_ = 0;
  Message incoming_{};         // whose body is being read
  std::byte* body_ = nullptr;  // destination of the rest of it
  std::size_t body_left_ = 0;
  bool waits_ = false;
  bool cannot_send_ = false;
  std::string close_reason_;
};

}  // namespace lockstep::engine
