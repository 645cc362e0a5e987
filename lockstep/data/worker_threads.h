#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// Throws ResourceExhausted: the system gave `started` of `wanted` threads and no more.
[[noreturn]] LOCKSTEP_EXPORT void throw_no_more_threads(int started, int wanted, const std::string& reason);

/// What could not be started once is not tried again: who goes on after the error would find the elements elsewhere
/// than the other inputs of a zip, or the rest of a batch, expect them.
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

/// Threads that run all or not at all: each waits until the last is there. Whoever owns it tells them to stop before it
/// goes.
template <class Thread = std::thread>
class WorkerThreads {
 public:
  WorkerThreads() = default;
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;
  ~WorkerThreads() { join(); }

  /// Calls `run` on `count` threads. If one cannot be started, none calls it, and ResourceExhausted is thrown.
  void start(int count, std::function<void()> run) {
    run_ = std::move(run);
    try {
      threads_.reserve(static_cast<std::size_t>(count));
      for (int i = 0; i < count; ++i) {
        threads_.emplace_back([this] {
          gate_.wait(kClosed);
          if (gate_.load() == kOpen) run_();
        });
      }
    } catch (const std::system_error& error) {
      give_up();
      throw_no_more_threads(static_cast<int>(threads_.size()), count, error.what());
    } catch (...) {
      give_up();
      throw;
    }
    set_gate(kOpen);
  }

  void join() {
    for (Thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

 private:
  static constexpr int kClosed = 0;
  static constexpr int kOpen = 1;
  static constexpr int kGivenUp = 2;

  void set_gate(int state) {
    gate_.store(state);
    gate_.notify_all();
  }

  void give_up() {
    set_gate(kGivenUp);
    join();
  }

  std::function<void()> run_;
  std::atomic<int> gate_{kClosed};
  std::vector<Thread> threads_;
};

}  // namespace lockstep::data
