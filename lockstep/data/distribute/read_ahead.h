#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/workers.h"

namespace lockstep::data {

/// Makes items on a thread of its own, up to `capacity` of them before they are asked for, and hands them out in order.
/// With capacity 0 there is no thread and items are made when asked for. Destroying it in the middle waits for the item
/// that is being made, and for nothing else.
template <class T>
class ReadAhead {
 public:
  /// `make` returns nothing at the end and ever after. What it throws is thrown by `next` in its place; nothing more is
  /// made then until `next` is called again, so that whoever gives up need not wait.
  ReadAhead(
      std::function<std::optional<T>()> make, std::size_t capacity, std::function<void()> on_thread_start = [] {})
      : make_(std::move(make)), capacity_(capacity), on_thread_start_(std::move(on_thread_start)) {
    start();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// How many items could be had without waiting.
  std::size_t ready() const { return thread_ ? thread_->ready() : 0; }

  /// Returns when `next` would not wait for the thread, or after `limit`; whether it would not.
  bool wait_for(std::chrono::milliseconds limit) { return !thread_ || told_error_ || thread_->wait_for(limit); }

  /// The next item; nothing at the end and ever after.
  std::optional<T> next() {
    if (std::exchange(told_error_, false)) start_again();
    Item item;
    if (!(thread_ ? thread_->take(item) : fill(item))) return std::nullopt;
    if (!item.error) return std::move(item.value);
    told_error_ = true;
    std::rethrow_exception(item.error);
  }

 private:
  struct Item {
    std::optional<T> value;
    std::exception_ptr error = nullptr;  ///< in its place
  };

  /// The thread ends with the first error.
  void start() {
    thread_ = nullptr;
    failed_ = false;
    if (capacity_ == 0) return;
    WorkerFunctions<Item> functions{[this](Item& item) { return fill(item); }, [](Item&) {}, on_thread_start_};
    thread_ = std::make_unique<Workers<Item>>(1, capacity_, std::move(functions));
  }

  /// Without a thread if none can be had: that no item could be made would be untrue.
  void start_again() {
    try {
      start();
    } catch (const ResourceExhausted&) {
    }
  }

  bool fill(Item& item) {
    if (failed_) return false;
    item = {};
    try {
      item.value = make_();
      return item.value.has_value();
    } catch (...) {
      item.error = std::current_exception();
      return failed_ = true;
    }
  }

  std::function<std::optional<T>()> make_;
  std::size_t capacity_;
  std::function<void()> on_thread_start_;
  bool failed_ = false;                    ///< since the last start; of the thread while there is one
  bool told_error_ = false;                ///< by the last call of `next`
  std::unique_ptr<Workers<Item>> thread_;  ///< last: it uses all of the above
};

}  // namespace lockstep::data
