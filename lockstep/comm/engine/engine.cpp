#include "lockstep/comm/engine/engine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/status.h"

namespace lockstep {
namespace {

using engine::make_status;
using engine::status_of_exception;
using engine::throw_status;

constexpr const char* kLibrary = "liblockstep_engine.so";

/// Folders of what this code was linked into, which may be a shared library, and of the program.
std::vector<std::filesystem::path> own_folders() {
  std::vector<std::filesystem::path> folders;
  const auto add = [&](const char* file) {
    std::error_code error;
    const auto path = std::filesystem::canonical(file, error);
    if (!error) folders.push_back(path.parent_path());
  };
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folders), &info) != 0 && info.dli_fname != nullptr)
    add(info.dli_fname);
  add("/proc/self/exe");
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

[[noreturn]] void cannot_load(const std::string& path, const std::string& reason) {
  throw Unavailable(
      errors::kEngineLoad,
      {.what = str("the data engine ", path, " cannot be loaded: ", reason),
       .help = "install liblockstep_engine.so with Lockstep (cmake --install), or set the environment variable "
               "LOCKSTEP_ENGINE to its path"});
}

// LibTorch exports other symbols under Gloo's names, so the plugin gets its own first (RTLD_DEEPBIND) and shows none
// (RTLD_LOCAL). It stays for ever, since its threads may run until the very end of the process.
const lockstep_engine_api* load(const std::string& asked) {
  const std::string path = library_path(asked);
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    cannot_load(path, reason != nullptr ? reason : "unknown reason");
  }
  using Entry = const lockstep_engine_api* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(handle, "lockstep_engine_entry"));
  if (entry == nullptr) cannot_load(path, "it is no data engine of Lockstep");
  const lockstep_engine_api* const api = entry();
  if (api->abi != LOCKSTEP_ENGINE_ABI)
    cannot_load(path, str("it has version ", api->abi, " of the interface, needed is ", LOCKSTEP_ENGINE_ABI));
  return api;
}

std::int32_t set_in_store(void* self, const char* key, const void* data, std::size_t size, lockstep_status* status) {
  try {
    static_cast<const EngineStore*>(self)->set(key, std::string(static_cast<const char*>(data), size));
    return 0;
  } catch (...) {
    *status = status_of_exception();
    return status->code;
  }
}

std::int32_t get_from_store(void* self, const char* key, double seconds, void* data, std::size_t capacity,
                            std::size_t* size, lockstep_status* status) {
  try {
    const std::string value =
        static_cast<const EngineStore*>(self)->get(key, Deadline::after(std::chrono::duration<double>(seconds)));
    *size = value.size();
    std::memcpy(data, value.data(), std::min(capacity, value.size()));
    return 0;
  } catch (...) {
    *status = status_of_exception();
    return status->code;
  }
}

double seconds_until(Deadline deadline, double never) {
  return deadline.is_never() ? never : std::chrono::duration<double>(deadline.remaining()).count();
}

}  // namespace

struct Engine::Impl {
  const lockstep_engine_api* api = nullptr;
  lockstep_engine* engine = nullptr;
  int workers = 1;

  ~Impl() {
    if (engine != nullptr) api->destroy(engine);
  }
};

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->api = options.linked != nullptr ? options.linked : load(options.library);
  impl_->workers = options.workers;
  EngineStore store = options.store;
  lockstep_engine_options given{};
  given.abi = LOCKSTEP_ENGINE_ABI;
  given.rank = options.rank;
  given.workers = options.workers;
  given.replicas = options.replicas;
  given.channels = options.channels;
  given.port = options.port;
  given.ring = options.ring ? 1 : 0;
  given.address = options.address.c_str();
  given.prefix = options.prefix.c_str();
  given.connect_seconds = seconds_until(options.connect, 1e9);
  given.call_seconds = options.call_seconds;
  given.chunk_bytes = options.chunk_bytes;
  given.inline_bytes = options.inline_bytes;
  given.store = {&store, set_in_store, get_from_store};
  lockstep_status status{};
  impl_->engine = impl_->api->create(&given, &status);
  if (impl_->engine == nullptr) throw_status(status);
}

Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine::Ticket Engine::submit(int channel, const Collective& collective, Deadline limit) {
  if (!collective.counts.empty() && collective.counts.size() != static_cast<std::size_t>(impl_->workers))
    throw InvalidArgument(errors::kBadOption, {.what = str("counts must have one entry per worker (", impl_->workers,
                                                           "), got ", collective.counts.size()),
                                               .help = "gather the workers' counts first"});
  const std::string name(collective.name);
  lockstep_collective given{};
  given.kind = static_cast<std::int32_t>(collective.kind);
  given.dtype = static_cast<std::int32_t>(collective.dtype);
  given.reduce = static_cast<std::int32_t>(collective.reduce);
  given.implementation = static_cast<std::int32_t>(collective.implementation);
  given.root = collective.root;
  given.input_count = static_cast<std::int32_t>(collective.inputs.size());
  given.output_count = static_cast<std::int32_t>(collective.outputs.size());
  given.shape_size = static_cast<std::int32_t>(collective.shape.size());
  given.elements = collective.elements;
  given.inputs = collective.inputs.data();
  given.outputs = collective.outputs.data();
  given.shape = collective.shape.data();
  given.counts = collective.counts.empty() ? nullptr : collective.counts.data();
  given.name = name.c_str();
  // A limit that has passed is still a limit; 0 would be none.
  given.seconds = limit.is_never() ? 0 : std::max(1e-6, seconds_until(limit, 0));
  lockstep_status status{};
  const Ticket ticket = impl_->api->submit(impl_->engine, channel, &given, &status);
  if (ticket == 0) throw_status(status);
  return ticket;
}

void Engine::wait(Ticket ticket, Deadline deadline) {
  lockstep_status status{};
  if (impl_->api->wait(impl_->engine, ticket, seconds_until(deadline, -1), &status) != 0) throw_status(status);
}

void Engine::abort(const Error& reason) {
  const lockstep_status status = make_status(reason.code(), reason.number(), reason.text());
  impl_->api->abort(impl_->engine, &status);
}

std::string Engine::log() const {
  std::string text(1 << 16, '\0');
  while (true) {
    const std::size_t size = impl_->api->log(impl_->engine, text.data(), text.size());
    const bool fits = size <= text.size();
    text.resize(size);
    if (fits) return text;
  }
}

}  // namespace lockstep
