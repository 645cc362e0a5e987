#pragma once

#include <memory>

namespace lockstep {

/// LibTorch's number of threads as operations of the calling thread would have it if there were no strategies.
///
/// LibTorch keeps the number per thread, and setting it also decides what threads that start later begin with. A
/// strategy sets its own number on the thread that makes it, and cannot take it back there when it ends on another
/// thread. What strategies have set must not be taken for what the program wants: the next strategy would divide it
/// once more.
int threads_without_strategies();

/// Sets LibTorch's number for the calling thread, if it is another one: that takes long.
void set_threads(int threads);

/// Changing the number of threads is slow, so the thread that makes a strategy keeps that strategy's number between its
/// runs. Strategies may end in any order and on any thread. The last one of a thread brings back what was there before
/// the first: at once where it ends on that thread, and else when that thread makes its next one. What the program has
/// set itself in the meantime stays.
class ThreadsOfMaker {
 public:
  explicit ThreadsOfMaker(int threads);
  ~ThreadsOfMaker();
  ThreadsOfMaker(const ThreadsOfMaker&) = delete;
  ThreadsOfMaker& operator=(const ThreadsOfMaker&) = delete;

  struct Maker;

 private:
  std::shared_ptr<Maker> maker_;
};

}  // namespace lockstep
