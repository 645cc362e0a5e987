#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep::data {

/// What is measured of one stage. Written by the thread that runs the stage, read by anybody.
struct StageCounters {
  std::string description;  ///< "map(2 parallel calls)"
  std::string kind;
  std::string label;  ///< what the user calls the stage (MapOptions::name)
  int depth = 0;
  int parallel_calls = 0;
  StageCounters* above = nullptr;  ///< the stage that reads from this one

  std::atomic<std::int64_t> first_asked_ns{0};  ///< of the steady clock; 0: it was not asked yet
  std::atomic<std::int64_t> elements{0};
  std::atomic<std::int64_t> rows{0};
  std::atomic<std::int64_t> asked_ns{0};      ///< within `next`, inputs on the same thread included
  std::atomic<std::int64_t> computing_ns{0};  ///< of parallel calls: within the function, all threads together
  std::atomic<std::int64_t> buffered{0};      ///< pieces that were ready, summed over requests
  std::atomic<std::int64_t> requests{0};
  std::atomic<std::int64_t> buffer_size{0};

  void buffer(std::size_t ready, std::size_t size) {
    buffered.fetch_add(static_cast<std::int64_t>(ready), std::memory_order_relaxed);
    requests.fetch_add(1, std::memory_order_relaxed);
    buffer_size.store(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  }
};

}  // namespace lockstep::data
