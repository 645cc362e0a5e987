// Gloo's own ring behind the interface of engine_abi.h: the only file that knows Gloo. Gloo trusts whoever connects to
// its ports while the pairs are made, and learns of a worker's end later than our own connections do: it is there for
// those who ask for it by name, and as a peer to measure against.

#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/comm/engine/blocked_signals.h"
#include "lockstep/comm/engine/engine_abi.h"

struct lockstep_ring {
  std::shared_ptr<gloo::rendezvous::Context> context;
  decltype(lockstep_ring_options::add) add;
};

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

milliseconds limit_of(double seconds) {
  return milliseconds(static_cast<long>(std::clamp(seconds, 0.001, 86400.0) * 1000));  // Gloo adds it to a time
}

class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  explicit StoreForGloo(const lockstep_ring_options& options) : options_(options) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (options_.set(options_.store, key.c_str(), data.data(), data.size()) == 0)
      throw std::runtime_error("the store took no " + key);
  }
  std::vector<char> get(const std::string& key) override {
    std::size_t size = 0;
    const auto* value = static_cast<const char*>(options_.get(options_.store, key.c_str(), &size));
    if (value == nullptr) throw std::runtime_error("the store has no " + key);
    return {value, value + size};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  const lockstep_ring_options& options_;
};

lockstep_ring* create(const lockstep_ring_options* options, char* error) {
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(options->rank, options->workers);
    if (options->workers > 1) {
      std::shared_ptr<gloo::transport::Device> device;
      {
        // Gloo writes to sockets without asking not to be killed for it: its thread must not get that signal.
        const BlockedSignals blocked;
        gloo::transport::tcp::attr attribute;
        attribute.hostname = options->address;
        device = gloo::transport::tcp::CreateDevice(attribute);
      }
      StoreForGloo store(*options);
      // Gloo waits five times as long for a connection.
      context->setTimeout(limit_of(options->seconds / 5));
      context->connectFullMesh(store, device);
    }
    return new lockstep_ring{std::move(context), options->add};
  } catch (const std::exception& exception) {
    std::snprintf(error, LOCKSTEP_RING_ERROR, "%s", exception.what());
    return nullptr;
  }
}

void destroy(lockstep_ring* ring) { delete ring; }

template <class T>
void reduce_as(const lockstep_ring& ring, std::int32_t dtype, void* data, std::size_t elements, double seconds) {
  gloo::AllreduceOptions options(ring.context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(static_cast<T*>(data), elements);
  options.setReduceFunction(
      [dtype, add = ring.add](void* out, const void* a, const void* b, std::size_t n) { add(dtype, a, b, out, n); });
  options.setTimeout(limit_of(seconds));
  gloo::allreduce(options);
}

std::int32_t all_reduce(lockstep_ring* ring, std::int32_t dtype, std::size_t element_bytes, void* data,
                        std::size_t elements, double seconds, char* error) {
  if (elements == 0 || ring->context->size == 1) return 1;
  try {
    // Gloo needs a type only for its size.
    const auto reduce = element_bytes == 1   ? reduce_as<std::uint8_t>
                        : element_bytes == 2 ? reduce_as<std::uint16_t>
                        : element_bytes == 4 ? reduce_as<std::uint32_t>
                                             : reduce_as<std::uint64_t>;
    reduce(*ring, dtype, data, elements, seconds);
    return 1;
  } catch (const std::exception& exception) {
    std::snprintf(error, LOCKSTEP_RING_ERROR, "%s", exception.what());
    return 0;
  }
}

}  // namespace
}  // namespace lockstep::engine

extern "C" LOCKSTEP_EXPORT const lockstep_engine_api* lockstep_engine_entry() {
  using namespace lockstep::engine;
  static constexpr lockstep_engine_api kApi{LOCKSTEP_ENGINE_ABI, create, destroy, all_reduce};
  return &kApi;
}
