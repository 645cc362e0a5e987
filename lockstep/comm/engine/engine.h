#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/comm/engine/collective.h"

struct lockstep_engine_api;

namespace lockstep {

/// A store through which workers exchange their addresses while an engine is made. `get` waits until the key is there
/// and throws a lockstep::Error at the deadline.
struct EngineStore {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key, Deadline deadline)> get;
  std::function<void()> check = [] {};  ///< throws once the job has failed, as does `get`
};

struct EngineOptions {
  int rank = 0;                       ///< this worker
  int workers = 1;                    ///< number of workers in the job
  int replicas = 1;                   ///< replicas of each worker
  int channels = 2;                   ///< independent sequences: 0 for the program's own collectives, 1 for gradients
  std::string address = "127.0.0.1";  ///< listens only here, and only until all workers are connected
  int port = 0;                       ///< 0: a free one
  std::vector<std::string> hosts =
      {};                         ///< hosts of all workers: while they connect, strangers cannot take their places
  std::string prefix = "engine";  ///< prefix of the keys in the store; a different one for every engine of a job
  EngineStore store;              ///< used only while the engine is made
  Deadline connect = Deadline::after(std::chrono::minutes(5));
  std::chrono::milliseconds reach =
      std::chrono::seconds(10);             ///< limit of one connection: the other worker is already listening
  double call_seconds = 0;                  ///< time limit of a collective that names none; 0: none
  std::size_t chunk_bytes = 512 << 10;      ///< large arrays are sent in chunks of this size
  std::size_t inline_bytes = kInlineBytes;  ///< smaller ones are sent with the message that announces them
  bool ring = false;                        ///< also load Gloo and connect its pairs, for Implementation::Ring
  std::string library = {};                 ///< the plugin for it; empty: $LOCKSTEP_ENGINE, or where it is installed
  const lockstep_engine_api* linked = nullptr;  ///< the plugin, if it is linked in instead of loaded
  /// Called four times a second, on a thread of the engine, while the network to a worker is cut: the callee may know
  /// the cause and abort the engine with it. If that does not happen within 4 s, or without this function, the engine
  /// ends by itself.
  std::function<void(int worker)> on_cut = nullptr;
  /// Workers of one machine read large arrays from each other's memory, if the system allows it.
  bool in_place = true;
};

/// Called for a slow collective, with the workers that have not reached it.
using OnLate = std::function<void(std::string_view name, const std::vector<int>& workers)>;

/// Moves CPU arrays between the workers of a job; all workers make one at the same time, with the same options except
/// for their own rank, address and port. Sums have the order of reduction_tree.h over all replicas of all workers, so
/// the bits are the same for every W x R.
///
///     Engine engine({.rank = 0, .workers = 2, .replicas = 1, .store = store});
///     engine.run(0, {.kind = CollectiveKind::AllReduce, .elements = n, .inputs = inputs, .outputs = outputs,
///                    .name = "loss"});
///
/// Collectives of one channel run in the order of submission, independently of other channels. After the first error
/// the engine is unusable: all pending and later calls throw that error. Errors: L104 a worker is gone, L110 workers
/// called different collectives, L101 a time limit, or the argument of `abort`. All calls may come from any thread.
class LOCKSTEP_EXPORT Engine {
 public:
  /// Connects to all workers. L105, L106; L114 if Gloo's ring is requested and cannot be loaded.
  explicit Engine(const EngineOptions& options);
  ~Engine();  ///< informs the others; waits at most 2 s for data that they still have to receive

  using Ticket = std::uint64_t;

  /// Begins a collective. It owns the arrays until `wait` has returned. A limit that passes ends the engine, since the
  /// arrays are then in an unknown state.
  Ticket submit(int channel, const Collective& collective, Deadline limit = Deadline::by_default());
  /// Waits for it; once per ticket. If that takes longer than `patience`, calls `on_late` once.
  void wait(Ticket ticket, std::chrono::milliseconds patience = {}, const OnLate& on_late = nullptr);
  void run(int channel, const Collective& collective, Deadline limit = Deadline::by_default()) {
    wait(submit(channel, collective, limit));
  }

  /// All pending and later calls fail at once with this error, here and soon on all other workers.
  void abort(const Error& reason);

  /// The last 1,000 collectives of each channel, one line each, for a report after a failure.
  std::string log() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
