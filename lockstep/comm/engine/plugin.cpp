#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/gloo/ring.h"
#include "lockstep/comm/engine/status.h"
#include "lockstep/comm/engine/tcp/core.h"

struct lockstep_engine {
  lockstep::engine::Core core;
};

namespace lockstep::engine {
namespace {

lockstep_engine* create(const lockstep_engine_options* options, lockstep_status* status) {
  try {
    return new lockstep_engine{Core(*options, make_gloo_ring)};
  } catch (...) {
    *status = status_of_exception();
    return nullptr;
  }
}

void destroy(lockstep_engine* engine) { delete engine; }

std::uint64_t submit(lockstep_engine* engine, std::int32_t channel, const lockstep_collective* collective,
                     lockstep_status* status) {
  try {
    return engine->core.submit(channel, *collective);
  } catch (...) {
    *status = status_of_exception();
    return 0;
  }
}

std::int32_t wait(lockstep_engine* engine, std::uint64_t ticket, double seconds, lockstep_status* status) {
  try {
    engine->core.wait(ticket, seconds);
    return 0;
  } catch (...) {
    *status = status_of_exception();
    return status->code;
  }
}

void abort(lockstep_engine* engine, const lockstep_status* reason) { engine->core.abort(*reason); }

std::size_t log(lockstep_engine* engine, char* text, std::size_t capacity) {
  try {
    const std::string all = engine->core.log();
    std::memcpy(text, all.data(), std::min(capacity, all.size()));
    return all.size();
  } catch (...) {
    return 0;
  }
}

}  // namespace
}  // namespace lockstep::engine

extern "C" LOCKSTEP_EXPORT const lockstep_engine_api* lockstep_engine_entry() {
  using namespace lockstep::engine;
  static constexpr lockstep_engine_api kApi{LOCKSTEP_ENGINE_ABI, "tcp+gloo", create, destroy, submit, wait, abort, log};
  return &kApi;
}
