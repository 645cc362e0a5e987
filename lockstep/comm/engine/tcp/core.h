#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/tcp/channel.h"
#include "lockstep/comm/engine/tcp/failure_state.h"
#include "lockstep/comm/engine/tcp/mesh.h"

namespace lockstep::engine {

/// Makes Implementation::Ring for a channel.
using MakeRing =
    std::function<std::unique_ptr<RingReducer>(const MeshOptions&, int channel, const MeshStore&, Deadline)>;

/// The engine behind the ABI: channels over one set of connections. Thread-safe.
class Core {
 public:
  Core(const lockstep_engine_options& options, const MakeRing& make_ring);
  ~Core();

  std::uint64_t submit(int channel, const lockstep_collective& collective);
  void wait(std::uint64_t ticket, double seconds);
  void abort(const lockstep_status& reason) { failure_.set(reason); }
  std::string log() const;

 private:
  FailureState failure_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace lockstep::engine
