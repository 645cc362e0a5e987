#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// Called first on every thread of a pipeline: sets its name, one intra-op thread (so that results do not depend on the
/// number of threads) and no gradients. The program's own threads are left alone.
LOCKSTEP_EXPORT void prepare_pipeline_thread(const char* name);

/// Throws ResourceExhausted: the system started `started` of `wanted` threads.
[[noreturn]] LOCKSTEP_EXPORT void throw_no_more_threads(int started, int wanted, const std::string& reason);

/// A start that failed is not retried: after the error the elements would no longer line up with the other inputs of a
/// zip, or the rest of a batch.
class StartOnce {
 public:
  template <class F>
  void operator()(F&& start) {
    if (error_) std::rethrow_exception(error_);
    try {
      start();
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  std::exception_ptr error_;
};

/// The work of a pipeline's threads: `fill` takes the next piece of work from the input (one thread at a time, in
/// order; false at its end), `work` computes it (many at once). Neither may throw: errors travel within the piece.
template <class Piece>
struct WorkerFunctions {
  std::function<bool(Piece&)> fill;
  std::function<void(Piece&)> work;
  std::function<void()> on_thread_start = [] {};
};

/// The order in which pieces come out.
enum class PieceOrder {
  AsInput,
  AsFinished,  ///< a slow one does not hold up others
};

/// Threads that read ahead and compute; the owner takes finished pieces. The destructor stops each thread after its
/// current piece. If not all threads can be started, none requests a piece, and the constructor throws
/// ResourceExhausted.
template <class Piece, class Thread = std::thread>
class Workers {
 public:
  /// `limit`: pieces that are being made or wait to be taken. Memory is only allocated for those in use.
  Workers(int threads, std::size_t limit, WorkerFunctions<Piece> functions, PieceOrder order = PieceOrder::AsInput)
      : functions_(std::move(functions)), limit_(limit), order_(order) {
    // All threads run or none: each waits until the last has started.
    std::promise<bool> all_there;
    const auto give_up = [&] {
      all_there.set_value(false);
      for (Thread& thread : threads_) thread.join();
    };
    try {
      threads_.reserve(static_cast<std::size_t>(threads));
      for (std::shared_future<bool> gate = all_there.get_future().share(); std::ssize(threads_) < threads;)
        threads_.emplace_back([this, gate] {
          if (gate.get()) run();
        });
    } catch (const std::system_error& error) {
      give_up();
      throw_no_more_threads(static_cast<int>(threads_.size()), threads, error.what());
    } catch (...) {
      give_up();
      throw;
    }
    all_there.set_value(true);
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (Thread& thread : threads_) thread.join();
  }

  /// Waits for the next piece and swaps it with `piece`, whose memory is reused; false at the end.
  bool take(Piece& piece) {
    std::unique_lock lock(mutex_);
    auto next = slots_.end();
    finished_.wait(lock, [&] { return (next = find_ready()) != slots_.end() || (ended_ && slots_.empty()); });
    if (next == slots_.end()) return false;
    std::swap(piece, next->piece);
    next->ready = false;
    spare_.splice(spare_.begin(), slots_, next);
    // Waking a thread costs more than many pieces: wait until there is room for a few, unless the owner has to wait
    // next.
    const bool wakes = limit_ - slots_.size() >= std::min<std::size_t>(limit_ / 2, 8) || find_ready() == slots_.end();
    lock.unlock();
    if (wakes) room_.notify_one();
    return true;
  }

  /// Waits until `take` would return at once, at most `limit`; returns whether it would.
  bool wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return finished_.wait_for(lock, limit, [&] { return find_ready() != slots_.end() || (ended_ && slots_.empty()); });
  }

  /// Finished pieces that wait to be taken; a snapshot.
  std::size_t ready() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count(slots_, true, &Slot::ready));
  }

 private:
  struct Slot {
    Piece piece = {};
    bool ready = false;
  };
  using SlotPtr = typename std::list<Slot>::iterator;

  SlotPtr find_ready() {
    if (order_ == PieceOrder::AsFinished) return std::ranges::find(slots_, true, &Slot::ready);
    return slots_.empty() || !slots_.front().ready ? slots_.end() : slots_.begin();
  }

  void run() {
    functions_.on_thread_start();
    for (SlotPtr slot; fill_next(slot);) {
      functions_.work(slot->piece);
      {
        const std::lock_guard lock(mutex_);
        slot->ready = true;
      }
      finished_.notify_one();
    }
  }

  /// Finds the slot for a new piece of work; false if there is none.
  bool fill_next(SlotPtr& slot) {
    const std::lock_guard reading(input_);
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return stop_ || slots_.size() < limit_; });
      if (stop_ || ended_) return false;
      if (spare_.empty()) spare_.emplace_back();
      slot = spare_.begin();
      slots_.splice(slots_.end(), spare_, slot);
    }
    if (functions_.fill(slot->piece)) return true;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      slots_.erase(slot);
    }
    finished_.notify_one();
    return false;
  }

  WorkerFunctions<Piece> functions_;
  std::size_t limit_;
  PieceOrder order_;
  std::mutex input_;          // its holder reads the input, or waits for room to do so
  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable room_;
  std::condition_variable finished_;
  std::list<Slot> slots_;  // in the order of the input
  std::list<Slot> spare_;  // for reuse of their memory
  bool ended_ = false;
  bool stop_ = false;
  std::vector<Thread> threads_;
};

/// Workers whose threads start when a piece is first asked for.
template <class Piece>
class LazyWorkers {
 public:
  LazyWorkers(int threads, std::size_t limit, WorkerFunctions<Piece> functions, PieceOrder order = PieceOrder::AsInput)
      : limit_(limit), make_([=, functions = std::move(functions)] {
          return std::make_unique<Workers<Piece>>(threads, limit, functions, order);
        }) {}

  bool have_started() const { return workers_ != nullptr; }
  std::size_t limit() const { return limit_; }
  std::size_t ready() const { return workers_ ? workers_->ready() : 0; }
  bool take(Piece& piece) {
    if (!workers_) start_once_([this] { workers_ = make_(); });
    return workers_->take(piece);
  }

 private:
  std::size_t limit_;
  std::function<std::unique_ptr<Workers<Piece>>()> make_;
  StartOnce start_once_;
  std::unique_ptr<Workers<Piece>> workers_;
};

}  // namespace lockstep::data
