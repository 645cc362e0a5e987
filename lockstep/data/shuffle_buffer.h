#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/position.h"
#include "lockstep/data/random_key.h"

namespace lockstep::data {

/// A shuffle buffer over any items: elements, or row numbers. The choices depend only on the key and the number of
/// items, never on the items, so a shuffle of numbers predicts a shuffle of elements.
template <class Item>
class ShuffleBuffer {
 public:
  ShuffleBuffer(std::uint64_t key, std::int64_t capacity) : random_(key), capacity_(capacity) {}

  /// Writes the next item; false when all are gone. `pull(item)` gives the next item of the input, false at its end.
  template <class Pull>
  bool next(Item& item, Pull&& pull) {
    while (!ended_ && static_cast<std::int64_t>(items_.size()) < capacity_) {
      Item fresh;
      if (!pull(fresh)) {
        ended_ = true;
        break;
      }
      items_.push_back(std::move(fresh));
    }
    if (items_.empty()) return false;
    const std::uint64_t chosen = random_.below(items_.size());
    using std::swap;
    swap(items_[chosen], items_.back());
    swap(item, items_.back());
    items_.pop_back();
    return true;
  }

  /// Skips up to `count` items, and returns how many there were.
  template <class Pull>
  std::int64_t skip(std::int64_t count, Pull&& pull) {
    std::int64_t skipped = 0;
    for (Item unwanted = {}; skipped < count && next(unwanted, pull);) ++skipped;
    return skipped;
  }

  /// Writes the whole buffer of numbers, and reads it into a buffer of the same capacity.
  void save(Position& position) const requires std::is_same_v<Item, std::int64_t> {
    position.push(static_cast<std::int64_t>(random_.state()));
    position.push(ended_ ? 1 : 0);
    position.push(size());
    for (const std::int64_t item : items_) position.push(item);
  }
  void restore(Position& position) requires std::is_same_v<Item, std::int64_t> {
    random_.set_state(static_cast<std::uint64_t>(position.pop()));
    ended_ = position.pop() != 0;
    items_.clear();
    for (std::int64_t left = position.pop(); left > 0; --left) items_.push_back(position.pop());
  }

  std::vector<Item>& items() { return items_; }
  std::int64_t size() const { return static_cast<std::int64_t>(items_.size()); }

  /// A buffer in the same state with the numbers 0, 1, ... in place of this one's items.
  ShuffleBuffer<std::int64_t> numbered() const {
    ShuffleBuffer<std::int64_t> result(0, capacity_);
    result.random_ = random_;
    result.ended_ = ended_;
    for (std::int64_t i = 0; i < size(); ++i) result.items_.push_back(i);
    return result;
  }
  /// Takes over the choices of `other`; the caller moves the items.
  void follow(const ShuffleBuffer<std::int64_t>& other) {
    random_ = other.random_;
    ended_ = other.ended_;
  }

 private:
  template <class>
  friend class ShuffleBuffer;

  RandomStream random_;
  std::int64_t capacity_;
  bool ended_ = false;
  std::vector<Item> items_;
};

}  // namespace lockstep::data
