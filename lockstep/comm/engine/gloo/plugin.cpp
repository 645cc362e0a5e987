// Gloo's own ring behind the interface of engine_abi.h: the only file that depends on Gloo. Gloo trusts any process
// that connects to its ports while the pairs are made, and learns of a worker's end later than our own connections do:
// it exists for programs that ask for it by name, and for comparison.

#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/engine/blocked_signals.h"
#include "lockstep/comm/engine/engine_abi.h"

using std::chrono::milliseconds;

// Does the work of connectFullMesh in two steps: the store in which workers exchange their addresses is not here.
struct lockstep_ring final : gloo::rendezvous::Context {
  lockstep_ring(int worker, int workers, const char* address, double seconds, lockstep_ring_add sums)
      : Context(worker, workers), add(sums) {
    if (size == 1) return;
    {
      // Gloo writes to sockets without suppressing SIGPIPE: its thread must not receive that signal.
      const lockstep::engine::BlockedSignals blocked;
      gloo::transport::tcp::attr attribute;
      attribute.hostname = address;
      device_ = gloo::transport::tcp::CreateDevice(attribute);
    }
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(limit_of(seconds / 5));  // Gloo waits five times as long for a connection
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const auto bytes = transportContext_->createPair(other)->address().bytes();
      addresses.insert(addresses.end(), bytes.begin(), bytes.end());
    }
  }

  static milliseconds limit_of(double seconds) {
    return milliseconds(static_cast<long>(std::clamp(seconds, 0.001, 86400.0) * 1000));  // Gloo adds it to a time
  }

  void connect(int other, std::vector<char> theirs) { getPair(other)->connect(extractAddress(theirs, other)); }

  const lockstep_ring_add add;
  std::vector<char> addresses;  // addresses of all pairs
};

namespace {

// Returns 0 if it throws.
template <class Action>
std::int32_t attempt(char* error, const Action& action) {
  try {
    action();
    return 1;
  } catch (const std::exception& exception) {
    std::snprintf(error, LOCKSTEP_RING_ERROR, "%s", exception.what());
    return 0;
  }
}

lockstep_ring* create(std::int32_t rank, std::int32_t workers, const char* address, double seconds,
                      lockstep_ring_add add, char* error) {
  lockstep_ring* ring = nullptr;
  attempt(error, [&] { ring = new lockstep_ring(rank, workers, address, seconds, add); });
  return ring;
}

void destroy(lockstep_ring* ring) { delete ring; }

const void* addresses(const lockstep_ring* ring, std::size_t* size) {
  *size = ring->addresses.size();
  return ring->addresses.data();
}

std::int32_t connect(lockstep_ring* ring, std::int32_t worker, const void* theirs, std::size_t size, char* error) {
  const auto* const bytes = static_cast<const char*>(theirs);
  return attempt(error, [&] { ring->connect(worker, {bytes, bytes + size}); });
}

template <class T>
void reduce_as(lockstep_ring& ring, std::int32_t dtype, void* data, std::size_t elements, double seconds) {
  gloo::AllreduceOptions options(std::shared_ptr<gloo::Context>(std::shared_ptr<void>(), &ring));
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(static_cast<T*>(data), elements);
  options.setReduceFunction(
      [dtype, add = ring.add](void* out, const void* a, const void* b, std::size_t n) { add(dtype, a, b, out, n); });
  options.setTimeout(lockstep_ring::limit_of(seconds));
  gloo::allreduce(options);
}

std::int32_t all_reduce(lockstep_ring* ring, std::int32_t dtype, std::size_t element_bytes, void* data,
                        std::size_t elements, double seconds, char* error) {
  if (elements == 0 || ring->size == 1) return 1;
  // Gloo needs a type only for its size.
  const auto reduce = element_bytes == 1   ? reduce_as<std::uint8_t>
                      : element_bytes == 2 ? reduce_as<std::uint16_t>
                      : element_bytes == 4 ? reduce_as<std::uint32_t>
                                           : reduce_as<std::uint64_t>;
  return attempt(error, [&] { reduce(*ring, dtype, data, elements, seconds); });
}

}  // namespace

extern "C" LOCKSTEP_EXPORT const lockstep_engine_api* lockstep_engine_entry() {
  static constexpr lockstep_engine_api kApi{LOCKSTEP_ENGINE_ABI, create, destroy, addresses, connect, all_reduce};
  return &kApi;
}
