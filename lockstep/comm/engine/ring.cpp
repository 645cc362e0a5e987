#include "lockstep/comm/engine/ring.h"

#include <dlfcn.h>

#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {
namespace {

#define LOCKSTEP_ENGINE_LIBRARY "liblockstep_engine.so"

// LibTorch exports other symbols under Gloo's names, so the plugin looks up its own first (RTLD_DEEPBIND) and exposes
// none (RTLD_LOCAL). It stays loaded, since its threads may run until the very end of the process.
const lockstep_engine_api* load(const std::string& library) {
  std::vector<std::string> places{library.empty() ? environment_variable("LOCKSTEP_ENGINE") : library};
  if (places[0].empty()) {
    // First the paths that move together with an installed folder (bin/ and lib/): the loader replaces $ORIGIN by the
    // folder of the program or shared library that contains this code. Then the run path that Lockstep::cluster gives
    // to programs, which the loader searches for a name without a folder.
    places = {"$ORIGIN/" LOCKSTEP_ENGINE_LIBRARY, "$ORIGIN/../" LOCKSTEP_LIBRARY_FOLDER "/" LOCKSTEP_ENGINE_LIBRARY,
              LOCKSTEP_ENGINE_LIBRARY};
  }
  const auto refuse = [&](const std::string& reason) {
    throw Unavailable(errors::kEngineLoad,
                      {.what = str("the data engine ", places.back(), " cannot be loaded: ", reason),
                       .help = "install liblockstep_engine.so with Lockstep (cmake --install), or set the environment "
                               "variable LOCKSTEP_ENGINE to its path"});
  };
  void* handle = nullptr;
  std::string reasons;
  for (const std::string& place : places) {
    handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND | RTLD_NODELETE);
    if (handle != nullptr) break;
    reasons += str(reasons.empty() ? "" : "; ", ::dlerror());
  }
  if (handle == nullptr) refuse(reasons);
  // std::call_once would mix two C++ runtimes and crash.
  constexpr const char* kOfRuntime = "_ZSt9terminatev";
  if (::dlsym(handle, kOfRuntime) != ::dlsym(RTLD_DEFAULT, kOfRuntime)) {
    throw Unavailable(errors::kEngineLoad,
                      {.what = "Gloo's ring cannot be used: the program has a C++ runtime of its own inside",
                       .help = "link it without -static-libstdc++, or use Implementation::Auto"});
  }
  const auto entry = reinterpret_cast<decltype(&lockstep_engine_entry)>(::dlsym(handle, "lockstep_engine_entry"));
  if (entry == nullptr) refuse("it is not a data engine of Lockstep");
  if (entry()->abi != LOCKSTEP_ENGINE_ABI)
    refuse(str("it has version ", entry()->abi, " of the interface, needed is ", LOCKSTEP_ENGINE_ABI));
  return entry();
}

double seconds_until(Deadline deadline) { return std::chrono::duration<double>(deadline.remaining()).count(); }

void add(std::int32_t dtype, const void* a, const void* b, void* out, std::size_t elements) {
  const void* const inputs[] = {a, b};
  ordered_sum(static_cast<Dtype>(dtype), inputs, 2, &out, 1, elements);
}

}  // namespace

Ring::Ring(const EngineOptions& options, int channel)
    : api_(options.linked != nullptr ? options.linked : load(options.library)), ring_(nullptr, api_->destroy) {
  const auto key = [&](int rank) { return str(options.prefix, "/gloo/", channel, "/", rank); };
  char reason[LOCKSTEP_RING_ERROR] = "";
  ring_.reset(api_->create(options.rank, options.workers, options.address.c_str(), seconds_until(options.connect), add,
                           reason));
  bool is_well = ring_ != nullptr;
  if (is_well && options.workers > 1) {
    std::size_t size = 0;
    const auto* const own = static_cast<const char*>(api_->addresses(ring_.get(), &size));
    options.store.set(key(options.rank), std::string(own, size));
  }
  for (int rank = 0; is_well && rank < options.workers; ++rank) {
    if (rank == options.rank) continue;
    const std::string theirs = options.store.get(key(rank), options.connect);
    is_well = api_->connect(ring_.get(), rank, theirs.data(), theirs.size(), reason) != 0;
  }
  if (is_well) return;
  throw Unavailable(errors::kPeerMissing, {.what = "Gloo could not connect the workers for its ring",
                                           .seen = reason,
                                           .help = "check that a firewall lets the workers reach each other"});
}

void Ring::all_reduce(Dtype dtype, void* data, std::size_t elements, Deadline deadline) {
  char reason[LOCKSTEP_RING_ERROR] = "";
  if (api_->all_reduce(ring_.get(), static_cast<std::int32_t>(dtype), size_of(dtype), data, elements,
                       seconds_until(deadline), reason) == 0)
    throw Unavailable(errors::kPeerLost,
                      {.what = "Gloo's ring all-reduce failed",
                       .seen = reason,
                       .help = "look at the other workers' logs; Implementation::Auto names the worker"});
}

}  // namespace lockstep::engine
