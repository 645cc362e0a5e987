#pragma once

#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
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
  void start(int count, const std::function<void()>& run) {
    std::promise<bool> all_there;
    const auto give_up = [&] {
      all_there.set_value(false);
      join();
    };
    try {
      threads_.reserve(static_cast<std::size_t>(count));
      for (std::shared_future<bool> gate = all_there.get_future().share(); std::ssize(threads_) < count;)
        threads_.emplace_back([gate, run] {
          if (gate.get()) run();
        });
    } catch (const std::system_error& error) {
      give_up();
      throw_no_more_threads(static_cast<int>(threads_.size()), count, error.what());
    } catch (...) {
      give_up();
      throw;
    }
    all_there.set_value(true);
  }

  void join() {
    for (Thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

 private:
  std::vector<Thread> threads_;
};

}  // namespace lockstep::data
