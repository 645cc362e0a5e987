#include "lockstep/comm/engine/tcp/link.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"

namespace lockstep::engine {

// After a body of this size the reader returns to its caller, which sums it while it is in the cache.
constexpr std::size_t kLargeBody = 32 << 10;

void refuse(int from, const Message& message) {
  throw DataLoss(errors::kStranger,
                 {.what = str("worker ", from, " sent unexpected bytes"),
                  .seen = str("message ", static_cast<int>(message.kind), " of collective ", message.sequence,
                              ", piece ", message.piece, ", chunk ", message.chunk, ", ", message.bytes, " bytes"),
                  .help = "this is a bug in Lockstep, or the connection is disturbed: please report it"});
}

bool read_memory(pid_t process, std::uint64_t address, void* to, std::size_t bytes) {
  const iovec here{to, bytes}, there{reinterpret_cast<void*>(address), bytes};
  return ::process_vm_readv(process, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

void Link::note_closed(std::string reason) {
  close_reason_ = std::move(reason);
  queue_.clear();
}

void Link::push() {
  while (!queue_.empty() && !cannot_send_ && !closed()) {
    Outgoing& first = queue_.front();
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    if (first.sent < sizeof(Message))
      parts[count++] = {reinterpret_cast<char*>(&first.message) + first.sent, sizeof(Message) - first.sent};
    const std::size_t body_sent = first.sent > sizeof(Message) ? first.sent - sizeof(Message) : 0;
    if (body_sent < first.message.following())
      parts[count++] = {const_cast<char*>(static_cast<const char*>(first.body)) + body_sent,
                        first.message.following() - body_sent};
    msghdr header{};
    header.msg_iov = parts.data();
    header.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
      // The reason for closing may still be unread, so reading decides what happened.
      cannot_send_ = true;
      queue_.clear();
      return;
    }
    first.sent += static_cast<std::size_t>(sent);
    if (first.sent == sizeof(Message) + first.message.following()) queue_.pop_front();
  }
}

bool Link::tell_last(const Message& message, const void* body) {
  if (!queue_.empty() && queue_.front().sent > 0) {
    ::shutdown(socket_.get(), SHUT_RDWR);
    return false;
  }
  queue_.clear();
  send(message, body);
  push();
  return true;
}

bool Link::begin_message(Inbox& inbox) {
  incoming_ = next_;
  body_ = static_cast<std::byte*>(inbox.target(*this, incoming_));
  waits_ = body_ == nullptr;
  if (waits_) return false;
  next_read_ = 0;
  body_left_ = incoming_.following();
  if (incoming_.address != 0) {
    if (neighbour_ == 0) refuse(rank_, incoming_);
    if (!read_memory(neighbour_, incoming_.address, body_, incoming_.bytes)) {
      note_closed("its memory cannot be read: " + system_text(errno));
      return false;
    }
  }
  if (body_left_ == 0) inbox.arrived(*this, incoming_);
  return incoming_.address == 0;
}

void Link::pull(Inbox& inbox) {
  while (!closed()) {
    if (body_left_ == 0 && next_read_ == sizeof(Message)) {
      if (!begin_message(inbox)) return;
      continue;
    }
    // The header of the next message is read along with the body of this one.
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    if (body_left_ > 0) parts[count++] = {body_, body_left_};
    parts[count++] = {reinterpret_cast<char*>(&next_) + next_read_, sizeof(Message) - next_read_};
    const ssize_t got = ::readv(socket_.get(), parts.data(), static_cast<int>(count));
    if (got == 0) return note_closed("the connection was closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) note_closed(system_text(errno));
      return;
    }
    const auto all = static_cast<std::size_t>(got);
    const std::size_t of_body = std::min(all, body_left_);
    body_ += of_body;
    body_left_ -= of_body;
    next_read_ += all - of_body;
    if (of_body > 0 && body_left_ == 0) {
      inbox.arrived(*this, incoming_);
      // A message without a body would not wake a thread that polls for more bytes.
      if (incoming_.bytes >= kLargeBody && (next_read_ < sizeof(Message) || next_.following() > 0)) return;
    }
  }
}

int Link::unacknowledged() const {
  // Data that a reset connection still had to send counts forever.
  pollfd entry{socket_.get(), 0, 0};
  if (::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLERR | POLLHUP)) != 0) return 0;
  int bytes = 0;
  return ::ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace lockstep::engine
