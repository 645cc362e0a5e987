#pragma once

#include <atomic>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
class Strategy;
}

namespace lockstep::detail {

/// An address that no other thread has.
inline const void* this_thread() {
  thread_local const char mark = 0;
  return &mark;
}

/// Throws if another thread holds one for the same `user`. If two threads of a worker began collectives at the same time, other
/// workers could match them in another order. Without a `user` it does nothing.
class OneThread {
 public:
  OneThread(std::atomic<const void*>* user, const char* operation) : user_(user) {
    if (user == nullptr) return;
    const void* holder = nullptr;
    is_first_ = user->compare_exchange_strong(holder, this_thread());
    if (is_first_ || holder == this_thread()) return;
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(operation, " was called while another thread is inside such a call"),
                              .help = "use a strategy from one thread at a time"});
  }
  ~OneThread() {
    if (is_first_) user_->store(nullptr);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  std::atomic<const void*>* user_;
  bool is_first_ = false;
};

/// The thread that is inside reduce, gather or broadcast.
struct CollectiveThread {
  std::atomic<const void*> holder{nullptr};
};
/// Null without workers, which alone can match calls of two threads in another order.
std::atomic<const void*>* collective_thread(const Strategy& strategy);

}  // namespace lockstep::detail
