#include "lockstep/data/auto_shard_policy.h"

#include "lockstep/data/errors.h"

namespace lockstep {

std::string_view to_string(AutoShardPolicy policy) {
  switch (policy) {
    case AutoShardPolicy::Off: return "OFF";
    case AutoShardPolicy::Auto: return "AUTO";
    case AutoShardPolicy::File: return "FILE";
    case AutoShardPolicy::Data: return "DATA";
    case AutoShardPolicy::Hint: return "HINT";
  }
  throw InvalidArgument(errors::kBadOption, {.what = str("there is no auto-shard policy ", static_cast<int>(policy)),
                                             .help = "use Off, Auto, File, Data or Hint of AutoShardPolicy"});
}

}  // namespace lockstep
