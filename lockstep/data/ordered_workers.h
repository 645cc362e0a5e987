#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/data/worker_threads.h"

namespace lockstep::data {

/// What threads of a pipeline do: `fill` takes the next piece of work from the input (one thread at a time, in order;
/// false at its end), `work` computes it (many at once). Neither may throw: errors travel within the piece.
template <class Piece>
struct WorkerFunctions {
  std::function<bool(Piece&)> fill;
  std::function<void(Piece&)> work;
  std::function<void()> on_thread_start = [] {};
};

/// Threads that read ahead and compute; the owner takes finished pieces. Destroying it in the middle stops the threads
/// after the piece each is at. Where not all threads can be started, none has asked for a piece, and the constructor
/// throws ResourceExhausted.
template <class Piece>
class Workers {
 public:
  virtual ~Workers() = default;
  /// Waits for the next piece and swaps it with `piece`, whose memory is then used again; false at the end.
  virtual bool take(Piece& piece) = 0;
  /// Finished pieces that wait to be taken; a snapshot.
  virtual std::size_t ready() const = 0;
};

/// Pieces come out in the order of the input. A ring of slots, each with a state that says whose turn it is; a lock is
/// only taken to read the input, once per piece.
template <class Piece, class Thread = std::thread>
class OrderedWorkers final : public Workers<Piece> {
 public:
  OrderedWorkers(int threads, std::size_t slots, WorkerFunctions<Piece> functions)
      : functions_(std::move(functions)), slots_(slots), blocks_((slots + kBlock - 1) / kBlock) {
    threads_.start(threads, [this] { run(); });
  }

  ~OrderedWorkers() override {
    stop_.store(true);
    for_each_slot([](Slot& slot) {
      slot.state.store(kStopped);
      slot.state.notify_all();
    });
    threads_.join();
    for (const auto& block : blocks_) delete[] block.load();
  }

  bool take(Piece& piece) override {
    Slot& slot = slot_of(taken_);
    std::uint32_t state = slot.state.load(std::memory_order_acquire);
    while (state == kEmpty || state == kWorking) {
      slot.state.wait(state, std::memory_order_acquire);
      state = slot.state.load(std::memory_order_acquire);
    }
    if (state == kEnd) return false;
    std::swap(piece, slot.piece);
    slot.state.store(kEmpty, std::memory_order_release);
    slot.state.notify_all();
    ++taken_;
    return true;
  }

  std::size_t ready() const override {
    std::size_t count = 0;
    for_each_slot([&](const Slot& slot) { count += slot.state.load(std::memory_order_relaxed) == kReady ? 1 : 0; });
    return count;
  }

 private:
  static constexpr std::uint32_t kEmpty = 0;    // a worker may fill it
  static constexpr std::uint32_t kWorking = 1;  // a worker has filled it and computes
  static constexpr std::uint32_t kReady = 2;    // the owner may take it
  static constexpr std::uint32_t kEnd = 3;      // the input ended here
  static constexpr std::uint32_t kStopped = 4;  // not needed any more

  struct alignas(64) Slot {
    std::atomic<std::uint32_t> state{kEmpty};
    Piece piece;
  };

  /// Slots are made when they are first needed, a block at a time: somebody may ask for a million.
  static constexpr std::size_t kBlock = 64;

  std::size_t size_of_block(std::size_t block) const { return std::min(kBlock, slots_ - block * kBlock); }

  /// Those that were made.
  template <class Visit>
  void for_each_slot(Visit visit) const {
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      Slot* slots = blocks_[block].load(std::memory_order_acquire);
      for (std::size_t i = 0; slots != nullptr && i < size_of_block(block); ++i) visit(slots[i]);
    }
  }

  Slot& slot_of(std::size_t number) {
    const std::size_t index = number % slots_;
    std::atomic<Slot*>& block = blocks_[index / kBlock];
    Slot* slots = block.load(std::memory_order_acquire);
    if (slots == nullptr) {
      const std::lock_guard lock(making_);
      slots = block.load(std::memory_order_acquire);
      if (slots == nullptr) {
        slots = new Slot[size_of_block(index / kBlock)];
        block.store(slots, std::memory_order_release);
      }
    }
    return slots[index % kBlock];
  }

  void run() {
    functions_.on_thread_start();
    while (Slot* slot = fill_next()) {
      functions_.work(slot->piece);
      // A stop in the meantime has marked the slot, and it is not looked at again: what is written here is the same.
      slot->state.store(kReady, std::memory_order_release);
      slot->state.notify_all();
    }
  }

  /// The slot of a new piece of work; null when there is none.
  Slot* fill_next() {
    const std::lock_guard lock(input_);
    if (ended_ || stop_.load()) return nullptr;
    Slot& slot = slot_of(filled_);
    // Waiting with the lock held: when this slot is not free, none is.
    for (std::uint32_t state; (state = slot.state.load(std::memory_order_acquire)) != kEmpty;) {
      if (stop_.load()) return nullptr;
      slot.state.wait(state, std::memory_order_acquire);
    }
    ++filled_;
    if (functions_.fill(slot.piece)) {
      slot.state.store(kWorking, std::memory_order_relaxed);
      return &slot;
    }
    ended_ = true;
    slot.state.store(kEnd, std::memory_order_release);
    slot.state.notify_all();
    return nullptr;
  }

  WorkerFunctions<Piece> functions_;
  std::size_t slots_;
  std::mutex making_;
  std::vector<std::atomic<Slot*>> blocks_;  // null until they are needed
  std::size_t taken_ = 0;
  std::mutex input_;
  std::size_t filled_ = 0;
  bool ended_ = false;
  std::atomic<bool> stop_{false};
  WorkerThreads<Thread> threads_;  // last: they use all of the above
};

/// Pieces come out as they are finished, so that a slow one does not hold up others.
template <class Piece, class Thread = std::thread>
class UnorderedWorkers final : public Workers<Piece> {
 public:
  UnorderedWorkers(int threads, std::size_t slots, WorkerFunctions<Piece> functions)
      : functions_(std::move(functions)), limit_(slots), running_(threads) {
    threads_.start(threads, [this] { run(); });
  }

  ~UnorderedWorkers() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    threads_.join();
  }

  bool take(Piece& piece) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !done_.empty() || running_ == 0; });
    if (done_.empty()) return false;
    std::swap(piece, done_.front());
    done_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  std::size_t ready() const override {
    const std::lock_guard lock(mutex_);
    return done_.size();
  }

 private:
  void run() {
    functions_.on_thread_start();
    Piece piece;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || done_.size() < limit_; });
        if (stop_) break;
      }
      {
        const std::lock_guard lock(input_);
        if (ended_ || !functions_.fill(piece)) {
          ended_ = true;
          break;
        }
      }
      functions_.work(piece);
      {
        const std::lock_guard lock(mutex_);
        done_.push_back(std::move(piece));
      }
      piece = Piece();
      changed_.notify_all();
    }
    {
      const std::lock_guard lock(mutex_);
      --running_;
    }
    changed_.notify_all();
  }

  WorkerFunctions<Piece> functions_;
  std::size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> done_;
  int running_;
  bool stop_ = false;
  std::mutex input_;
  bool ended_ = false;
  WorkerThreads<Thread> threads_;  // last: they use all of the above
};

}  // namespace lockstep::data
