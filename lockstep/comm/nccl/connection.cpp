#include "lockstep/comm/nccl/connection.h"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::nccl {
namespace {

constexpr std::chrono::milliseconds kLook(10);  ///< how often pending work is polled
constexpr std::chrono::microseconds kPause(50);
constexpr std::chrono::seconds kGoodbye(2);
constexpr std::chrono::seconds kCauseWait(4);

const char* const kHelp = "look at the logs of all workers; NCCL_DEBUG=WARN makes NCCL log more";

bool is_under_way(ncclResult_t result) { return result == ncclInProgress; }

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return asked == ncclSuccess ? state : asked;
}

Unavailable error_of(ncclResult_t result, const std::string& where, ncclComm_t comm) {
  return {errors::kPeerLost,
          {.what = str("NCCL failed: ", ncclGetErrorString(result)),
           .where = where,
           .seen = ncclGetLastError(comm),
           .help = kHelp}};
}

DeadlineExceeded timeout_of(const std::string& name) {
  return {errors::kTimeout,
          {.what = str(name, " between GPUs did not end within its time limit"),
           .help = "look at what the other workers do; timeout_seconds of CommunicationOptions is the "
                   "limit"}};
}

}  // namespace

void require_cuda(cudaError_t result) {
  if (result == cudaSuccess) return;
  throw Unavailable(errors::kPeerLost, {.what = str("the GPU failed: ", cudaGetErrorString(result)), .help = kHelp});
}

std::string make_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
    throw error_of(result, "ncclGetUniqueId", nullptr);
  return {id.internal, sizeof id.internal};
}

std::string version() {
  int number = 0;
  ncclGetVersion(&number);
  return str(number / 10000, ".", number / 100 % 100, ".", number % 100);
}

Connection::Connection(ConnectionOptions options) : options_(std::move(options)) {
  try {
    connect();
  } catch (...) {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    throw;
  }
  watcher_ = std::thread([this] { watch(); });
}

void Connection::connect() {
  require_cuda(cudaSetDevice(options_.device));
  ncclUniqueId id;
  if (options_.id.size() != sizeof id.internal)
    throw Internal(errors::kInternal,
                   {.what = "an id of NCCL has a wrong size", .help = "this is a bug in Lockstep: please report it"});
  std::memcpy(id.internal, options_.id.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // no call waits for other workers: it is polled within a limit
  const ncclResult_t begun = ncclCommInitRankConfig(&comm_, options_.workers, id, options_.rank, &config);
  try {
    finish_call(begun, options_.limit, "connection");
  } catch (const Unavailable& error) {
    if (error.number() != errors::kPeerLost) throw;  // the job has failed
    ErrorText text = error.text();
    text.what = str("the GPUs of the workers cannot be connected: ", text.what);
    text.help = "each worker needs a GPU of its own; NCCL_DEBUG=WARN makes NCCL log more";
    throw Unavailable(errors::kEngineLoad, text);
  }
}

Connection::~Connection() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  if (comm_ != nullptr) {
    const auto goodbye = Deadline::after(kGoodbye);
    ncclResult_t state = ncclCommFinalize(comm_);
    while (is_under_way(state) && !goodbye.expired()) {
      std::this_thread::sleep_for(kPause);
      state = state_of(comm_);
    }
    state == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
  }
  for (const UnderWay& each : under_way_) cudaEventDestroy(each.done);
  for (const cudaEvent_t event : spare_events_) cudaEventDestroy(event);
}

void Connection::start(cudaStream_t stream, const Deadline& limit, const std::string& name,
                       FunctionRef<void(ncclComm*)> put) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  try {
    put(comm_);
    if (spare_events_.empty())
      require_cuda(cudaEventCreateWithFlags(&spare_events_.emplace_back(), cudaEventDisableTiming));
    require_cuda(cudaEventRecord(spare_events_.back(), stream));
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  under_way_.push_back({spare_events_.back(), limit, name});
  spare_events_.pop_back();
  changed_.notify_all();
}

void Connection::finish_call(int result, const Deadline& limit, const std::string& name) {
  auto state = static_cast<ncclResult_t>(result);
  while (is_under_way(state)) {
    state = state_of(comm_);
    if (!is_under_way(state)) break;
    if (limit.expired()) throw timeout_of(name);
    options_.check();
    std::this_thread::sleep_for(kPause);
  }
  if (state != ncclSuccess) throw_error(state, name);
}

void Connection::throw_error(int result, const std::string& name) {
  for (const auto deadline = Deadline::after(kCauseWait); !deadline.expired(); std::this_thread::sleep_for(kLook))
    options_.check();
  throw error_of(static_cast<ncclResult_t>(result), name, comm_);
}

void Connection::wait_for_cause(std::unique_lock<std::mutex>& lock) {
  const auto is_over = [&] { return failure_ || is_stopping_; };
  for (const auto deadline = Deadline::after(kCauseWait); !deadline.expired() && !is_over();) {
    options_.check();
    changed_.wait_for(lock, kLook, is_over);
  }
}

void Connection::wait() {
  std::unique_lock lock(mutex_);
  while (!failure_ && !under_way_.empty()) {
    const cudaEvent_t last = under_way_.back().done;
    lock.unlock();
    cudaEventSynchronize(last);  // also returns if NCCL was aborted
    lock.lock();
    if (!failure_) drop_finished();
  }
  if (failure_) std::rethrow_exception(failure_);
}

void Connection::drop_finished() {
  // First, so that an error leaves each event in one of the two lists.
  for (const UnderWay& each : under_way_) {
    if (const cudaError_t state = cudaEventQuery(each.done); state != cudaErrorNotReady) require_cuda(state);
  }
  spare_events_.reserve(spare_events_.size() + under_way_.size());
  std::erase_if(under_way_, [&](const UnderWay& each) {
    if (cudaEventQuery(each.done) != cudaSuccess) return false;
    spare_events_.push_back(each.done);
    return true;
  });
}

void Connection::watch() {
  cudaSetDevice(options_.device);
  std::unique_lock lock(mutex_);
  while (!is_stopping_ && !failure_) {
    if (under_way_.empty()) {
      changed_.wait(lock, [&] { return is_stopping_ || failure_ || !under_way_.empty(); });
      continue;
    }
    try {
      drop_finished();
      if (under_way_.empty()) continue;
      if (under_way_.front().limit.expired()) throw timeout_of(under_way_.front().name);
      if (const ncclResult_t state = state_of(comm_); state != ncclSuccess) {
        const Unavailable error = error_of(state, under_way_.front().name, comm_);
        wait_for_cause(lock);
        if (failure_ || is_stopping_) continue;
        throw error;
      }
      options_.check();
    } catch (const Error& error) {
      fail(std::current_exception());
      lock.unlock();
      options_.failed(error);
      return;
    }
    changed_.wait_for(lock, kLook, [&] { return is_stopping_; });
  }
}

void Connection::fail(std::exception_ptr failure) {
  failure_ = std::move(failure);
  // Ends its kernels, which would wait for other workers forever.
  if (comm_ != nullptr) ncclCommAbort(comm_);
  comm_ = nullptr;
  changed_.notify_all();
}

}  // namespace lockstep::nccl
