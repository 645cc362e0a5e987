#pragma once

// Included by sources only: the only code that depends on the calling rules of gRPC's reactors.

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

namespace lockstep::coordination {

/// Starts gRPC and never stops it: stopping happens in the background and could coincide with the end of the process.
/// Silences its messages, since ours are more informative; GRPC_VERBOSITY=ERROR shows them.
inline void keep_grpc() {
  [[maybe_unused]] static const bool once = [] {
    constexpr auto kNothing = static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1);
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_verbosity(kNothing);
    grpc_init();
    return true;
  }();
}

/// Inform ThreadSanitizer of the order between a call of gRPC and its callbacks.
#ifdef LOCKSTEP_THREAD_SANITIZER
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
inline void handed_over(void* stream) { __tsan_release(stream); }
inline void came_back(void* stream) { __tsan_acquire(stream); }
#else
inline void handed_over(void*) {}
inline void came_back(void*) {}
#endif

/// Either end of a stream: reads all the time, writes what is queued, one at a time. `queue` can be called under a
/// lock; `write_queued` calls gRPC, which may call back at once, and must be called without one.
///
/// Messages are bytes here: gRPC would parse and free messages on its own threads.
template <class Reactor>
class Stream : public Reactor {
 public:
  ~Stream() override { from_grpc(); }

  void queue(const std::string& message) {
    const grpc::Slice slice(message);
    const std::lock_guard lock(mutex_);
    if (!closing_) queue_.emplace_back(&slice, 1);
  }

  /// Nothing can be sent any more; queued messages still go out if the other side reads.
  void close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }

  /// Whether gRPC has taken all queued messages.
  bool idle() {
    const std::lock_guard lock(mutex_);
    return broken_ || queue_.empty();
  }

  void write_queued() {
    std::unique_lock lock(mutex_);
    const bool writes = !writing_ && !ended_ && !queue_.empty() && !broken_;
    const bool ends = !writing_ && !ended_ && !writes && (closing_ || broken_);
    writing_ = writing_ || writes;
    ended_ = ended_ || ends;
    lock.unlock();
    to_grpc();
    if (writes) this->StartWrite(&queue_.front());  // only this writer takes from the front
    if (ends) end();
  }

  void start_read() {
    to_grpc();
    this->StartRead(&in_);
  }

  void OnReadDone(bool ok) override {
    from_grpc();
    if (!ok) {
      broken_ = true;
      broke();
      return write_queued();
    }
    grpc::Slice slice;
    if (in_.DumpToSingleSlice(&slice).ok()) {
      arrived(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()));
    }
    in_.Clear();
    start_read();
  }

  void OnWriteDone(bool ok) override {
    from_grpc();
    std::unique_lock lock(mutex_);
    if (!ok) broken_ = true;  // a read may have set it meanwhile
    writing_ = false;
    queue_.pop_front();
    lock.unlock();
    write_queued();
  }

 protected:
  /// Call before every call of gRPC that may call back, and first in every callback. They identify this part of the
  /// object: a class with other bases too begins elsewhere.
  void to_grpc() { handed_over(static_cast<Stream*>(this)); }
  void from_grpc() { came_back(static_cast<Stream*>(this)); }

  virtual void arrived(const std::string& message) = 0;
  virtual void broke() {}  ///< the other side is gone
  virtual void end() = 0;  ///< called once: nothing more to write

 private:
  std::mutex mutex_;
  grpc::ByteBuffer in_;
  std::deque<grpc::ByteBuffer> queue_;
  bool writing_ = false;
  std::atomic<bool> broken_ = false;
  bool closing_ = false;
  bool ended_ = false;
};

}  // namespace lockstep::coordination
