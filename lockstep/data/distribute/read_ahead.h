#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/data/worker_threads.h"

namespace lockstep::data {

/// Makes items on a thread of its own, up to `capacity` of them before they are asked for, and hands them out in order.
/// With capacity 0 there is no thread and items are made when asked for. Destroying it in the middle waits for the item
/// that is being made, and for nothing else.
template <class T>
class ReadAhead {
 public:
  /// `make` returns nothing at the end. What it throws is thrown by `next` in its place; nothing more is made then
  /// until `next` is called again, so that whoever gives up need not wait.
  ReadAhead(std::function<std::optional<T>()> make, std::size_t capacity)
      : make_(std::move(make)), capacity_(capacity) {
    if (capacity_ > 0) thread_.start(1, [this] { fill(); });
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// How many items could be had without waiting.
  std::size_t ready() {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

  /// The next item; nothing at the end and ever after.
  std::optional<T> next() {
    if (capacity_ == 0) return make_now();
    std::unique_lock lock(mutex_);
    if (paused_ && !error_) {  // it was told before
      paused_ = false;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return !items_.empty() || error_ || finished_; });
    if (items_.empty()) {
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
      return std::nullopt;
    }
    T item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  std::optional<T> make_now() {
    if (finished_) return std::nullopt;
    std::optional<T> item = make_();
    finished_ = !item;
    return item;
  }

  void fill() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || (!paused_ && items_.size() < capacity_); });
        if (stopped_) return;
      }
      std::optional<T> item;
      std::exception_ptr error;
      try {
        item = make_();
      } catch (...) {
        error = std::current_exception();
      }
      bool last = false;
      {
        const std::lock_guard lock(mutex_);
        // The error is asked for first: g++ 12 with ThreadSanitizer leaves the last item in `item` when `make_` throws.
        if (error) {
          error_ = std::move(error);  // the reader lets go of it, not this thread
          paused_ = true;
        } else if (item) {
          items_.push_back(std::move(*item));
        } else {
          finished_ = last = true;
        }
      }
      changed_.notify_all();
      if (last) return;
    }
  }

  std::function<std::optional<T>()> make_;
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  std::exception_ptr error_;  ///< behind the items, not thrown yet
  bool paused_ = false;       ///< after an error, until `next` is called again
  bool finished_ = false;
  bool stopped_ = false;
  WorkerThreads<> thread_;
};

}  // namespace lockstep::data
