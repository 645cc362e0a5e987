#pragma once

// Included by sources only: the one place that knows how gRPC's reactors want to be called.

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#ifdef LOCKSTEP_THREAD_SANITIZER
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace lockstep::coordination {

/// Tell ThreadSanitizer of the order that gRPC makes between a call of it and the calls that come back.
inline void handed_over([[maybe_unused]] void* stream) {
#ifdef LOCKSTEP_THREAD_SANITIZER
  __tsan_release(stream);
#endif
}
inline void came_back([[maybe_unused]] void* stream) {
#ifdef LOCKSTEP_THREAD_SANITIZER
  __tsan_acquire(stream);
#endif
}

/// Either end of a stream: reads all the time, writes what is queued, one at a time. `send` only queues, so that it can be
/// called under a lock; `flush` calls gRPC, which may call back at once, and must be called without one.
///
/// Messages are bytes here: gRPC would read and write them in its own threads, and free them there.
template <class Reactor>
class Stream : public Reactor {
 public:
  ~Stream() override { came_back(this); }

  void send(const std::string& message) {
    const grpc::Slice slice(message);
    const std::lock_guard lock(mutex_);
    if (!closing_) queue_.emplace_back(&slice, 1);
  }

  /// Nothing can be sent any more; what is queued still goes out if the other side reads.
  void close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }

  void flush() {
    std::unique_lock lock(mutex_);
    if (writing_ || ended_ || (queue_.empty() && !closing_ && !broken_)) {
      lock.unlock();
      return handed_over(this);
    }
    if (!queue_.empty() && !broken_) {
      writing_ = true;
      lock.unlock();
      handed_over(this);
      this->StartWrite(&queue_.front());  // only this writer takes from the front
    } else if (closing_ || broken_) {
      ended_ = true;
      lock.unlock();
      handed_over(this);
      end();
    }
  }

  /// Whether all that was sent has been handed to the network, or never will be.
  bool idle() const {
    const std::lock_guard lock(mutex_);
    return (queue_.empty() && !writing_) || broken_;
  }

  void OnReadDone(bool ok) override {
    came_back(this);
    if (!ok) {
      {
        const std::lock_guard lock(mutex_);
        broken_ = true;
      }
      broke();
      return flush();
    }
    grpc::Slice slice;
    if (in_.TrySingleSlice(&slice).ok() || in_.DumpToSingleSlice(&slice).ok()) {
      arrived(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()));
    }
    in_.Clear();
    handed_over(this);
    this->StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    came_back(this);
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) broken_ = true;
    }
    flush();
  }

 protected:
  virtual void arrived(const std::string& message) = 0;
  virtual void broke() = 0;  ///< the other side is gone
  virtual void end() = 0;    ///< called once: nothing more to write

  grpc::ByteBuffer in_;

 private:
  mutable std::mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_;
  bool writing_ = false;
  bool broken_ = false;
  bool closing_ = false;
  bool ended_ = false;
};

}  // namespace lockstep::coordination
