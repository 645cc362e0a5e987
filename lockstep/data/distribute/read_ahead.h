#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

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
  ReadAhead(std::function<std::optional<T>()> make, std::size_t capacity) : make_(std::move(make)) {
    if (capacity == 0) return;
    WorkerFunctions<Item> functions{[this](Item& item) { return fill(item); }, [](Item&) {}};
    thread_ = std::make_unique<Workers<Item>>(1, capacity, std::move(functions));
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() {
    state_ = State::Stopped;
    state_.notify_all();
  }

  /// How many items could be had without waiting.
  std::size_t ready() const { return thread_ ? thread_->ready() : 0; }

  /// The next item; nothing at the end and ever after.
  std::optional<T> next() {
    if (std::exchange(told_error_, false)) change(State::Paused, State::Going);
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

  enum class State { Going, Paused, Stopped };  ///< paused after an error, until `next` is called again

  bool fill(Item& item) {
    state_.wait(State::Paused);
    if (state_ == State::Stopped) return false;
    item = {};
    try {
      item.value = make_();
      return item.value.has_value();
    } catch (...) {
      item.error = std::current_exception();
      change(State::Going, State::Paused);
      return true;
    }
  }
  /// What was stopped stays so.
  void change(State from, State to) {
    if (state_.compare_exchange_strong(from, to)) state_.notify_all();
  }

  std::function<std::optional<T>()> make_;
  std::atomic<State> state_ = State::Going;
  bool told_error_ = false;                ///< by the last call of `next`
  std::unique_ptr<Workers<Item>> thread_;  ///< last: it uses all of the above
};

}  // namespace lockstep::data
