#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/data/iterator.h"
#include "lockstep/data/stage_meter.h"

namespace lockstep::data {

/// Measurements of one stage. Written by the thread that runs the stage, read by any thread.
struct StageCounters {
  StageReportLine line;            ///< description; its name is the user's (MapOptions::name)
  StageCounters* above = nullptr;  ///< the stage that reads from this one

  std::atomic<std::int64_t> first_asked_ns{0};  ///< by the steady clock; 0: no request yet
  std::atomic<std::int64_t> elements{0};
  std::atomic<std::int64_t> rows{0};
  std::atomic<std::int64_t> asked_ns{0};      ///< time in `next`, including inputs on the same thread
  std::atomic<std::int64_t> computing_ns{0};  ///< for parallel calls: time in the function, summed over threads
  std::atomic<std::int64_t> buffered{0};      ///< finished pieces waiting, summed over requests
  std::atomic<std::int64_t> requests{0};
  std::atomic<std::int64_t> buffer_size{0};

  using Clock = std::chrono::steady_clock;

  /// Called when an element is requested; returns the time.
  Clock::time_point begin_request() {
    const Clock::time_point now = Clock::now();
    std::int64_t not_yet = 0;
    if (first_asked_ns.load(std::memory_order_relaxed) == 0)
      first_asked_ns.compare_exchange_strong(not_yet, std::chrono::nanoseconds(now.time_since_epoch()).count());
    return now;
  }
  /// `its_rows`: rows of the element; none if there was no element.
  void end_request(Clock::time_point begun, std::optional<std::int64_t> its_rows) {
    add_time(asked_ns, begun);
    if (!its_rows) return;
    elements.fetch_add(1, std::memory_order_relaxed);
    rows.fetch_add(*its_rows, std::memory_order_relaxed);
  }
  static void add_time(std::atomic<std::int64_t>& sum, Clock::time_point begun) {
    sum.fetch_add(std::chrono::nanoseconds(Clock::now() - begun).count(), std::memory_order_relaxed);
  }

  void buffer(std::size_t ready, std::size_t size) {
    buffered.fetch_add(static_cast<std::int64_t>(ready), std::memory_order_relaxed);
    requests.fetch_add(1, std::memory_order_relaxed);
    buffer_size.store(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  }
};

/// The same elements, with time and rows counted for `stage`.
IteratorPtr make_metered_iterator(IteratorPtr measured, const Stage& stage, std::shared_ptr<StageCounters> counters);

}  // namespace lockstep::data
