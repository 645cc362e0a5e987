#include "lockstep/strategy/thread_counts.h"

#include <ATen/Parallel.h>

#include <mutex>
#include <set>
#include <system_error>
#include <thread>

namespace lockstep {

/// What strategies have done to a thread that makes them. Shared with them, so that no later thread has one at the same
/// address.
struct ThreadsOfMaker::Maker {
  int strategies = 0;      ///< made by it and alive
  int before = 0;          ///< its number without them
  int set = 0;             ///< what they have set last
  std::set<int> all_set;   ///< what they have set since there were none: other threads may have begun with it
  bool left = false;       ///< the last of them ended elsewhere, and the number is still set
  bool has_ended = false;  ///< the thread
};

namespace {

using Maker = ThreadsOfMaker::Maker;

/// All that is known of all threads, under one lock. Never destroyed: strategies may be destroyed after main.
struct Ledger {
  std::mutex mutex;
  std::multiset<int> ours;  ///< what makers have set and not taken back
  std::set<int> ever;       ///< what strategies have set at any time
  int wanted = 1;           ///< the program's own number, as last seen

  void forget(Maker& maker) {
    for (const int number : maker.all_set) ours.erase(ours.find(number));
    maker.all_set.clear();
    maker.left = false;
  }

  static Ledger& get() {
    static auto& ledger = *new Ledger;
    return ledger;
  }
};

/// Calls `f` on a new thread, whose number is that of threads that start now. Without the means to start one, does
/// nothing.
template <class F>
void on_new_thread(const F& f) {
  try {
    std::thread(f).join();
  } catch (const std::system_error&) {
  }
}

int number_of_new_threads(int otherwise) {
  int number = otherwise;
  on_new_thread([&] { number = at::get_num_threads(); });
  return number;
}

/// What threads begin with from now on; no running thread is changed.
void set_number_of_new_threads(int from, int to) {
  on_new_thread([=] {
    if (at::get_num_threads() == from) at::set_num_threads(to);
  });
}

constinit thread_local bool thread_is_ending = false;

struct MakerOfThread {
  std::shared_ptr<Maker> maker;
  ~MakerOfThread() {
    thread_is_ending = true;
    if (!maker) return;
    Ledger& ledger = Ledger::get();
    const std::lock_guard lock(ledger.mutex);
    maker->has_ended = true;
    if (maker->left) ledger.forget(*maker);
  }
};

/// Null if this thread has made no strategy yet, or is ending.
std::shared_ptr<Maker>& maker_here() {
  static thread_local MakerOfThread mine;
  return mine.maker;
}

std::shared_ptr<Maker> of_this_thread() {
  auto maker = thread_is_ending ? nullptr : maker_here();
  if (maker) return maker;
  maker = std::make_shared<Maker>();
  maker->has_ended = thread_is_ending;
  if (!thread_is_ending) maker_here() = maker;
  return maker;
}

/// Notes what the program wants for the calling thread. Under the lock.
void look(Ledger& ledger) {
  const auto maker = thread_is_ending ? nullptr : maker_here();
  if (maker && maker->left) {
    ledger.forget(*maker);
    if (at::get_num_threads() == maker->set) set_threads(maker->before);
  }
  const int now = at::get_num_threads();
  if (ledger.ours.contains(now)) return;
  // A thread that started while a strategy lived has that strategy's number, also when the strategy is gone. The program
  // would have changed what new threads begin with as well.
  const bool may_be_inherited = !maker && ledger.ever.contains(now);
  ledger.wanted = may_be_inherited ? number_of_new_threads(now) : now;
}

}  // namespace

int threads_without_strategies() {
  Ledger& ledger = Ledger::get();
  const std::lock_guard lock(ledger.mutex);
  look(ledger);
  return ledger.wanted;
}

void set_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

ThreadsOfMaker::ThreadsOfMaker(int threads) {
  const int wanted = threads_without_strategies();
  maker_ = of_this_thread();
  Ledger& ledger = Ledger::get();
  const std::lock_guard lock(ledger.mutex);
  if (maker_->strategies++ == 0) maker_->before = wanted;
  maker_->set = threads;
  if (maker_->all_set.insert(threads).second) ledger.ours.insert(threads);
  ledger.ever.insert(threads);
  set_threads(threads);
}

ThreadsOfMaker::~ThreadsOfMaker() {
  Ledger& ledger = Ledger::get();
  const std::lock_guard lock(ledger.mutex);
  if (--maker_->strategies > 0) return;
  const auto here = thread_is_ending ? nullptr : maker_here();
  const bool set_here = at::get_num_threads() == maker_->set;
  if (here == maker_) {
    ledger.forget(*maker_);
    if (set_here) set_threads(maker_->before);
    return;
  }
  if (maker_->has_ended)
    ledger.forget(*maker_);
  else
    maker_->left = true;
  if (thread_is_ending) return;
  // This thread may have started while the strategy lived, and begun with its number.
  if (set_here && !(here && here->strategies > 0))
    set_threads(maker_->before);
  else
    set_number_of_new_threads(maker_->set, maker_->before);
}

}  // namespace lockstep
