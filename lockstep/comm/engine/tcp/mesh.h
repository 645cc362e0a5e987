#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/engine/tcp/socket.h"

namespace lockstep::engine {

/// Where workers leave each other their addresses.
struct MeshStore {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key, Deadline deadline)> get;  ///< waits for the key
};

struct MeshOptions {
  int rank = 0;
  int workers = 1;
  int channels = 1;
  std::string address;
  int port = 0;
  std::string prefix;          ///< of the keys in the store
  std::uint64_t settings = 0;  ///< a hash of what must be equal on all workers
};

/// Connects every worker with every other one, once per channel: connections[channel][rank], empty for the own rank.
///
/// The listener is open only meanwhile, at one address and port. Whoever connects must present, in one message of fixed
/// size, a random number that the listening worker left in the store for this engine alone, and gets the one of its own
/// back: port scanners, strangers and workers of an earlier run are dropped and cost a worker nothing. L105 names the
/// workers that did not come before the deadline.
std::vector<std::vector<Descriptor>> connect_mesh(const MeshOptions& options, const MeshStore& store,
                                                  Deadline deadline);

}  // namespace lockstep::engine
