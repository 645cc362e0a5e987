#include "lockstep/comm/engine/gloo/ring.h"

#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/status.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

milliseconds limit_of(Deadline deadline) {
  constexpr milliseconds kLong = std::chrono::hours(24);  // Gloo adds it to a time
  return deadline.is_never()
             ? kLong
             : std::clamp(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1), kLong);
}

class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  StoreForGloo(const MeshStore& store, std::string prefix, Deadline deadline)
      : store_(store), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(prefix_ + key, deadline_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_.get(prefix_ + key, deadline_);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  const MeshStore& store_;
  std::string prefix_;
  Deadline deadline_;
};

class GlooRing final : public RingReducer {
 public:
  explicit GlooRing(std::shared_ptr<gloo::rendezvous::Context> context) : context_(std::move(context)) {}

  void all_reduce(Dtype dtype, void* data, std::size_t elements, Deadline deadline) override {
    if (elements == 0 || context_->size == 1) return;
    try {
      // Gloo needs a type only for its size.
      switch (size_of(dtype)) {
        case 1: return reduce_as<std::uint8_t>(dtype, data, elements, deadline);
        case 2: return reduce_as<std::uint16_t>(dtype, data, elements, deadline);
        case 4: return reduce_as<std::uint32_t>(dtype, data, elements, deadline);
        default: return reduce_as<std::uint64_t>(dtype, data, elements, deadline);
      }
    } catch (const std::exception& error) {
      throw Failure(Code::Unavailable, errors::kPeerLost,
                    {.what = "Gloo's ring all-reduce failed",
                     .seen = error.what(),
                     .help = "look at the other workers' logs; Implementation::Auto names the worker"});
    }
  }

 private:
  template <class T>
  void reduce_as(Dtype dtype, void* data, std::size_t elements, Deadline deadline) {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(static_cast<T*>(data), elements);
    options.setReduceFunction([dtype](void* out, const void* a, const void* b, std::size_t n) {
      const void* const inputs[] = {a, b};
      ordered_sum(dtype, inputs, 2, &out, 1, n);
    });
    options.setTimeout(limit_of(deadline));
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

std::unique_ptr<RingReducer> make_gloo_ring(const MeshOptions& options, int channel, const MeshStore& store,
                                            Deadline deadline) {
  auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.workers);
  if (options.workers == 1) return std::make_unique<GlooRing>(std::move(context));
  // Gloo writes to sockets without asking not to be killed for it: its thread must not get that signal.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    gloo::transport::tcp::attr attribute;
    attribute.hostname = options.address;
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attribute);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    StoreForGloo for_gloo(store, str(options.prefix, "/gloo/", channel, "/"), deadline);
    // Gloo waits five times as long for a connection.
    context->setTimeout(limit_of(deadline) / 5 + milliseconds(1));
    context->connectFullMesh(for_gloo, device);
  } catch (const Failure&) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  } catch (const std::exception& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Failure(Code::Unavailable, errors::kPeerMissing,
                  {.what = "Gloo could not connect the workers for its ring",
                   .seen = error.what(),
                   .help = "check that a firewall lets the workers reach each other"});
  }
  return std::make_unique<GlooRing>(std::move(context));
}

}  // namespace lockstep::engine
