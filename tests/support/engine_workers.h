#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/ordered_sum.h"
#include "tests/support/errors.h"

/// Workers as threads of one process, over real connections.
namespace lockstep::engine {

class MemoryStore {
 public:
  EngineStore face() {
    return {.set =
                [this](const std::string& key, const std::string& value) {
                  const std::lock_guard lock(mutex_);
                  values_[key] = value;
                  changed_.notify_all();
                },
            .get =
                [this](const std::string& key, Deadline deadline) {
                  std::unique_lock lock(mutex_);
                  const auto wait = std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::seconds(60));
                  if (!changed_.wait_for(lock, wait, [&] { return values_.contains(key); }))
                    throw DeadlineExceeded(errors::kPeerMissing, {.what = "no worker set " + key, .help = "-"});
                  return values_[key];
                }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

inline EngineOptions options_for(int rank, int workers, int replicas, MemoryStore& store) {
  EngineOptions options;
  options.rank = rank;
  options.workers = workers;
  options.replicas = replicas;
  options.store = store.face();
  options.connect = Deadline::after(std::chrono::seconds(60));
  options.call_seconds = 60;
  options.chunk_bytes = 4096;
  options.inline_bytes = 1024;
  options.linked = lockstep_engine_entry();
  return options;
}

/// Calls work(rank) once per worker, each on a thread of its own.
inline void on_workers(int workers, const std::function<void(int rank)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "worker " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

using Bytes = std::vector<unsigned char>;

/// Values of a replica: reproducible, of mixed sizes, so that the order of a sum shows in its bits.
inline Bytes values_of(int id, Dtype dtype, std::size_t elements, unsigned seed) {
  Bytes bytes(elements * size_of(dtype) + 64);
  std::mt19937 generator(seed * 1000 + static_cast<unsigned>(id));
  for (std::size_t i = 0; i < elements; ++i) {
    const float value =
        std::ldexp(static_cast<float>(generator() % 2001) - 1000.0F, static_cast<int>(generator() % 16) - 8);
    unsigned char* const to = bytes.data() + i * size_of(dtype);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    switch (dtype) {
      case Dtype::Float32: std::memcpy(to, &value, 4); break;
      case Dtype::Float64: {
        const double wide = static_cast<double>(value) / 3;
        std::memcpy(to, &wide, 8);
        break;
      }
      case Dtype::BFloat16: std::memcpy(to, reinterpret_cast<const char*>(&bits) + 2, 2); break;
      case Dtype::Float16: {
        const auto half = static_cast<std::uint16_t>((generator() & 0x83ff) | (12 + generator() % 6) << 10);
        std::memcpy(to, &half, 2);
        break;
      }
      case Dtype::Bool: *to = generator() % 2; break;
      default: {
        const std::uint64_t any = (std::uint64_t{generator()} << 32) + generator();
        std::memcpy(to, &any, size_of(dtype));
      }
    }
  }
  bytes.resize(elements * size_of(dtype));
  return bytes;
}

/// The expected sum, to the bit.
inline Bytes expected_sum(Dtype dtype, std::size_t elements, int ids, std::int64_t divisor, unsigned seed) {
  std::vector<Bytes> all;
  std::vector<const void*> inputs;
  for (int id = 0; id < ids; ++id) all.push_back(values_of(id, dtype, elements, seed));
  for (const Bytes& each : all) inputs.push_back(each.data());
  Bytes sum(elements * size_of(dtype));
  void* const output = sum.data();
  ordered_sum(dtype, inputs.data(), ids, &output, 1, elements, divisor);
  return sum;
}

}  // namespace lockstep::engine
