#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/strategy/mirrored_strategy.h"

// What the tests of this floor share.
namespace lockstep {

/// A strategy of `replicas` CPU replicas.
inline MirroredOptions on_cpus(int replicas) { return {.devices = cpus(replicas)}; }

/// The calling replica's id.
inline int my_id() { return get_replica_context().replica_id_in_sync_group(); }

/// Equal shape, element type and bytes; NaN equals itself and -0 differs from 0.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().contiguous().resolve_conj().resolve_neg();
  const at::Tensor y = b.detach().contiguous().resolve_conj().resolve_neg();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// What a call threw, if it was one of ours.
struct Seen {
  Code code = Code::Internal;
  int number = 0;
  std::string text;
  ErrorText parts;
};

/// Fails the test unless `call` throws a lockstep::Error.
template <class F>
Seen error_of(F&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.code(), e.number(), e.what(), e.text()};
  } catch (const c10::Error& e) {
    ADD_FAILURE() << "an error of LibTorch came through: " << e.what_without_backtrace();
    return {};
  } catch (const std::exception& e) {
    ADD_FAILURE() << "a foreign exception came through: " << e.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// Collects what is logged while it lives.
class LoggedLines {
 public:
  LoggedLines() {
    set_log_sink([this](Severity, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LoggedLines() { set_log_sink({}); }
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  int count(std::string_view fragment) const {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const auto& line : lines_) found += line.find(fragment) != std::string::npos ? 1 : 0;
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Ends the process with a message when it lives too long: a hang in a meeting cannot be interrupted in any other way.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit, std::string what)
      : thread_([this, limit, what = std::move(what)] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, limit, [&] { return over_; })) return;
          std::fprintf(stderr, "watchdog: %s still runs after %lld s\n", what.c_str(),
                       static_cast<long long>(limit.count()));
          std::abort();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace lockstep
