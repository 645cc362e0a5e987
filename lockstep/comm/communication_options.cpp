#include "lockstep/comm/communication_options.h"

#include <atomic>
#include <chrono>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr const char* kImplementations = "use Implementation::Auto, Ring or Nccl (\"auto\", \"ring\" or \"nccl\")";

void say_once_without_effect(Implementation implementation) {
  static std::atomic<bool> was_logged{false};
  if (was_logged.exchange(true)) return;
  say_info(str("implementation ", to_string(implementation),
               " has no effect within a process, whose replicas share their memory"));
}

}  // namespace

std::string_view to_string(Implementation implementation) {
  switch (implementation) {
    case Implementation::Auto: return "AUTO";
    case Implementation::Ring: return "RING";
    case Implementation::Nccl: return "NCCL";
  }
  return "UNKNOWN";
}

Implementation parse_implementation(std::string_view name) {
  for (const auto implementation : {Implementation::Auto, Implementation::Ring, Implementation::Nccl}) {
    if (equals_ignoring_case(name, to_string(implementation))) return implementation;
  }
  throw InvalidArgument(errors::kBadOption, {.what = str("implementation must be auto, ring or nccl, got '", name, "'"),
                                             .help = kImplementations});
}

CommunicationOptions validated(const CommunicationOptions& options) {
  if (options.bytes_per_pack < 0) {
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("bytes_per_pack must be >= 0, got ", options.bytes_per_pack),
         .help = "set bytes_per_pack to a size in bytes, or to 0 to pack everything into one message"});
  }
  if (const auto timeout = options.timeout_seconds; timeout && !(std::isfinite(*timeout) && *timeout >= 0)) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("timeout_seconds must be a finite number >= 0, got ", *timeout),
                           .help = "set timeout_seconds to a number of seconds, or to 0 to wait forever"});
  }
  const auto implementation = static_cast<int>(options.implementation);
  if (implementation < 0 || implementation > static_cast<int>(Implementation::Nccl)) {
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("implementation must be a value of the enum Implementation, got ", implementation),
         .help = kImplementations});
  }
  if (options.implementation != Implementation::Auto) say_once_without_effect(options.implementation);
  return options;
}

CommunicationOptions merge(const CommunicationOptions& base, const CommunicationOptions& other) {
  CommunicationOptions result = base;
  if (other.bytes_per_pack != 0) result.bytes_per_pack = other.bytes_per_pack;
  if (other.timeout_seconds) result.timeout_seconds = other.timeout_seconds;
  if (other.implementation != Implementation::Auto) result.implementation = other.implementation;
  return result;
}

Deadline deadline_of(const CommunicationOptions& options) {
  if (!options.timeout_seconds) return Deadline::by_default();
  if (*options.timeout_seconds == 0) return Deadline::never();
  return Deadline::after(std::chrono::duration<double>(*options.timeout_seconds));
}

}  // namespace lockstep
