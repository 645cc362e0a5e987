#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/function_ref.h"

struct ncclComm;

namespace lockstep::nccl {

/// The id through which workers find each other: one of them makes it, all connect with it.
std::string make_id();
std::string version();  ///< "2.28.9"

void require_cuda(cudaError_t result);

struct ConnectionOptions {
  int rank = 0;     ///< this worker
  int workers = 1;  ///< number of workers in the job
  int device = 0;   ///< the GPU, used by no other worker, otherwise NCCL refuses
  std::string id;   ///< from `make_id`
  Deadline limit = Deadline::never();
  /// Throws once the job has failed: pending work then ends. Also called from a thread of the connection.
  std::function<void()> check = [] {};
  /// Called from that thread for a failure that occurred while no call waited.
  std::function<void(const Error&)> failed = [](const Error&) {};
};

/// Communication between the workers' GPUs with NCCL. Work that exceeds its limit, or an error reported by NCCL, ends
/// the connection, and every later call throws that error: L101 a time limit, L104 NCCL's errors, L114 the GPUs cannot
/// be connected, or the exception of `check`.
class Connection {
 public:
  explicit Connection(ConnectionOptions options);
  ~Connection();  ///< waits at most 2 s for the others
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Calls `put`, which enqueues work on the stream, and watches that work until it is done.
  void start(cudaStream_t stream, const Deadline& limit, const std::string& name,
             FunctionRef<void(ncclComm* connected)> put);
  /// For `put`: a call of NCCL returned this, and may still be in progress. Its work is on the stream only once it is
  /// complete.
  void finish_call(int result, const Deadline& limit, const std::string& name);

  /// Waits until all started work is done.
  void wait();

 private:
  struct UnderWay {
    cudaEvent_t done;
    Deadline limit;
    std::string name;
  };

  void connect();
  /// NCCL's view of another worker's death is seldom the cause, which the job knows a moment later.
  [[noreturn]] void throw_error(int result, const std::string& name);
  void watch();
  /// Waits for that moment with the lock released. Throws the job's error.
  void wait_for_cause(std::unique_lock<std::mutex>& lock);
  // With the lock held.
  void drop_finished();
  void fail(std::exception_ptr failure);

  const ConnectionOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ncclComm* comm_ = nullptr;  ///< null after a failure
  std::exception_ptr failure_;
  std::vector<UnderWay> under_way_;
  std::vector<cudaEvent_t> spare_events_;
  bool is_stopping_ = false;
  std::thread watcher_;
};

}  // namespace lockstep::nccl
