#include "lockstep/comm/engine/ring.h"

#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/ordered_sum.h"

namespace lockstep::engine {
namespace {

constexpr const char* kLibrary = "liblockstep_engine.so";

/// Folders of what this code was linked into, which may be a shared library, and of the program.
std::vector<std::filesystem::path> own_folders() {
  std::vector<std::filesystem::path> folders;
  const auto add_folder = [&](const char* file) {
    std::error_code error;
    const auto path = std::filesystem::canonical(file, error);
    if (!error) folders.push_back(path.parent_path());
  };
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folders), &info) != 0 && info.dli_fname != nullptr)
    add_folder(info.dli_fname);
  add_folder("/proc/self/exe");
  return folders;
}

/// First what moves together with an installed folder (bin/ and lib/), then the run path that Lockstep::cluster gives to
/// programs, which the loader searches for a name without a folder.
std::string library_path(const std::string& asked) {
  if (!asked.empty()) return asked;
  if (const char* named = std::getenv("LOCKSTEP_ENGINE"); named != nullptr && *named != '\0') return named;
  for (const auto& folder : own_folders()) {
    for (const auto& place : {folder, folder.parent_path() / LOCKSTEP_LIBRARY_FOLDER}) {
      std::error_code ignored;
      if (std::filesystem::exists(place / kLibrary, ignored)) return (place / kLibrary).string();
    }
  }
  return kLibrary;
}

// LibTorch exports other symbols under Gloo's names, so the plugin gets its own first (RTLD_DEEPBIND) and shows none
// (RTLD_LOCAL). It stays for ever, since its threads may run until the very end of the process.
const lockstep_engine_api* load(const std::string& path) {
  const auto refuse = [&](const std::string& reason) {
    throw Unavailable(errors::kEngineLoad,
                      {.what = str("the data engine ", path, " cannot be loaded: ", reason),
                       .help = "install liblockstep_engine.so with Lockstep (cmake --install), or set the environment "
                               "variable LOCKSTEP_ENGINE to its path"});
  };
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    refuse(reason != nullptr ? reason : "unknown reason");
  }
  const auto entry = reinterpret_cast<decltype(&lockstep_engine_entry)>(::dlsym(handle, "lockstep_engine_entry"));
  if (entry == nullptr) refuse("it is no data engine of Lockstep");
  if (entry()->abi != LOCKSTEP_ENGINE_ABI)
    refuse(str("it has version ", entry()->abi, " of the interface, needed is ", LOCKSTEP_ENGINE_ABI));
  return entry();
}

double seconds_until(Deadline deadline) { return std::chrono::duration<double>(deadline.remaining()).count(); }

// The store as the plugin sees it; exceptions wait here until the plugin has returned.
struct PluginStore {
  const EngineOptions& options;
  std::string prefix;
  std::string value = {};
  std::exception_ptr error = {};

  static std::int32_t set(void* self, const char* key, const void* data, std::size_t size) {
    auto& store = *static_cast<PluginStore*>(self);
    try {
      store.options.store.set(store.prefix + key, std::string(static_cast<const char*>(data), size));
      return 1;
    } catch (...) {
      store.error = std::current_exception();
      return 0;
    }
  }
  static const void* get(void* self, const char* key, std::size_t* size) {
    auto& store = *static_cast<PluginStore*>(self);
    try {
      store.value = store.options.store.get(store.prefix + key, store.options.connect);
      *size = store.value.size();
      return store.value.data();
    } catch (...) {
      store.error = std::current_exception();
      return nullptr;
    }
  }
};

void add(std::int32_t dtype, const void* a, const void* b, void* out, std::size_t elements) {
  const void* const inputs[] = {a, b};
  ordered_sum(static_cast<Dtype>(dtype), inputs, 2, &out, 1, elements);
}

}  // namespace

Ring::Ring(const EngineOptions& options, int channel)
    : api_(options.linked != nullptr ? options.linked : load(library_path(options.library))) {
  PluginStore store{options, str(options.prefix, "/gloo/", channel, "/")};
  const lockstep_ring_options given{.rank = options.rank,
                                    .workers = options.workers,
                                    .address = options.address.c_str(),
                                    .seconds = seconds_until(options.connect),
                                    .store = &store,
                                    .set = PluginStore::set,
                                    .get = PluginStore::get,
                                    .add = add};
  char reason[LOCKSTEP_RING_ERROR] = "";
  ring_ = api_->create(&given, reason);
  if (ring_ != nullptr) return;
  if (store.error) std::rethrow_exception(store.error);
  throw Unavailable(errors::kPeerMissing, {.what = "Gloo could not connect the workers for its ring",
                                           .seen = reason,
                                           .help = "check that a firewall lets the workers reach each other"});
}

Ring::~Ring() { api_->destroy(ring_); }

void Ring::all_reduce(Dtype dtype, void* data, std::size_t elements, Deadline deadline) {
  char reason[LOCKSTEP_RING_ERROR] = "";
  if (api_->all_reduce(ring_, static_cast<std::int32_t>(dtype), size_of(dtype), data, elements, seconds_until(deadline),
                       reason) == 0)
    throw Unavailable(errors::kPeerLost,
                      {.what = "Gloo's ring all-reduce failed",
                       .seen = reason,
                       .help = "look at the other workers' logs; Implementation::Auto names the worker"});
}

}  // namespace lockstep::engine
