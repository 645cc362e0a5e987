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

/// Makes up to `capacity` items in advance on its own thread and returns them in order. With capacity 0 there is no
/// thread and items are made on demand. The destructor waits only for the item being made.
template <class T>
class ReadAhead {
 public:
  /// `make` returns nothing at the end and from then on. `next` throws the errors of `make` in their place. Nothing
  /// more is made until `next` is called again, so a caller that gives up need not wait.
  ReadAhead(
      std::function<std::optional<T>()> make, std::size_t capacity, std::function<void()> on_thread_start = [] {})
      : make_(std::move(make)), capacity_(capacity), on_thread_start_(std::move(on_thread_start)) {
    start();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// How many items are ready.
  std::size_t ready() const { return thread_ ? thread_->ready() : 0; }

  /// Waits until `next` would return at once, at most `limit`; returns whether it would.
  bool wait_for(std::chrono::milliseconds limit) { return !thread_ || told_error_ || thread_->wait_for(limit); }

  /// The next item; nothing at the end and from then on.
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

  /// Runs without a thread if none can be started, rather than failing although items can be made.
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
  bool failed_ = false;                    ///< since the last start; belongs to the thread while there is one
  bool told_error_ = false;                ///< by the last call of `next`
  std::unique_ptr<Workers<Item>> thread_;  ///< last: it uses all of the above
};

}  // namespace lockstep::data
