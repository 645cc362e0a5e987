#include "lockstep/strategy/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <charconv>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/local_replicas.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

/// Stands for a generator that a replica does not have, so that all replicas have the same entries.
at::Tensor no_bytes() { return at::empty({0}, at::kByte); }

at::Tensor bytes_of(at::Generator generator) {
  if (!generator.defined()) return no_bytes();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state.clone());
}

/// What a replica draws from, and what the program draws from outside of replicas.
std::vector<ReplicaGenerators> generators_of(const Strategy& strategy) {
  if (const LocalReplicas* const replicas = StrategyAccess::replicas(strategy)) return replicas->generators();
  return {shared_generators(at::kCPU)};
}

at::Generator callers_gpu(const ReplicaGenerators& generators) {
  return generators.gpu.defined() ? at::globalContext().defaultGenerator(generators.gpu.device()) : at::Generator();
}

struct Stream {
  const char* entry;
  at::Generator (*of)(const ReplicaGenerators&);
};
constexpr Stream kStreams[] = {
    {"caller", [](const ReplicaGenerators&) { return at::detail::getDefaultCPUGenerator(); }},
    {"caller_gpu", callers_gpu},
    {"cpu", [](const ReplicaGenerators& replica) { return replica.cpu; }},
    {"gpu", [](const ReplicaGenerators& replica) { return replica.gpu; }},
};
constexpr const char* kRecurrent = "recurrent_dropout";

at::Tensor recurrent_state(const ReplicaGenerators& replica) {
  return replica.recurrent && replica.recurrent->state.defined() ? replica.recurrent->state : no_bytes();
}

void set_recurrent_state(const ReplicaGenerators& replica, const at::Tensor& saved) {
  if (!replica.recurrent) return;
  const c10::InferenceMode for_training_too(false);
  RecurrentDropout& own = *replica.recurrent;
  if (own.state.defined() && own.state.sizes() == saved.sizes()) {
    own.state.copy_(saved);  // in place: recorded steps read it
  } else if (own.stand_in.defined()) {
    own.was_replaced = own.state.defined();
    own.state =
        saved.numel() > 0 ? saved.to(replica.gpu.device(), saved.scalar_type(), false, /*copy=*/true) : at::Tensor();
  }
}

/// The streams of a snapshot, for the local replicas; empty if it has none that can continue here.
std::vector<std::vector<at::Tensor>> streams_to_continue(SnapshotReader& reader, const Strategy& strategy) {
  if (!reader.fits(strategy)) return {};
  std::vector<std::vector<at::Tensor>> all;
  const std::vector<ReplicaGenerators> here = generators_of(strategy);
  for (const Stream& stream : kStreams) {
    all.push_back(reader.by_replica(stream.entry, strategy));
    for (std::size_t k = 0; k < here.size(); ++k) {
      if ((all.back()[k].numel() > 0) != stream.of(here[k]).defined()) return {};  // on another kind of device
    }
  }
  all.push_back(reader.by_replica(kRecurrent, strategy));
  return all;
}

/// Of new streams: the same for every number of workers.
std::uint64_t seed_of_new_streams(SnapshotReader& reader) {
  const at::Tensor first = reader.of_all_replicas("cpu").front();
  return fnv1a(std::span(static_cast<const std::uint8_t*>(first.const_data_ptr()), first.nbytes()));
}

std::uint64_t saved_seed(SnapshotReader& reader) {
  const std::string& text = reader.text("seed");
  std::uint64_t seed = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (failed != std::errc{} || end != text.data() + text.size())
    reader.refuse("seed", str("it must be a whole number >= 0, got '", text, "'"));
  return seed;
}

}  // namespace

void RandomState::capture(Snapshot& into, const std::string& name) const {
  require_between_runs(strategy_, "capture");
  const std::vector<ReplicaGenerators> here = generators_of(strategy_);
  std::vector<at::Tensor> states;
  for (const Stream& stream : kStreams) {
    states.clear();
    for (const ReplicaGenerators& replica : here) states.push_back(bytes_of(stream.of(replica)));
    put_by_replica(into, strategy_, str(name, '/', stream.entry), states);
  }
  states.clear();
  for (const ReplicaGenerators& replica : here) states.push_back(recurrent_state(replica));
  put_by_replica(into, strategy_, str(name, '/', kRecurrent), states);
  put_text(into, str(name, "/seed"), str(strategy_.seed()));
}

void RandomState::check(const Snapshot& from, const std::string& name) const {
  SnapshotReader reader(from, name);
  saved_seed(reader);
  if (streams_to_continue(reader, strategy_).empty()) seed_of_new_streams(reader);
}

void RandomState::restore(const Snapshot& from, const std::string& name) {
  require_between_runs(strategy_, "restore");
  SnapshotReader reader(from, name);
  const std::uint64_t seed = saved_seed(reader);
  const auto streams = streams_to_continue(reader, strategy_);
  LocalReplicas* const replicas = StrategyAccess::replicas(strategy_);
  if (streams.empty()) {
    const std::uint64_t fresh = seed_of_new_streams(reader);
    seed_shared_generators(fresh);
    if (replicas != nullptr) replicas->set_seed(fresh);
    return;
  }
  const std::vector<ReplicaGenerators> here = generators_of(strategy_);
  // From the last to the first: LibTorch's generators, which are one for all replicas, get what replica 0 had.
  for (std::size_t k = here.size(); k-- > 0;) {
    for (std::size_t s = 0; s < std::size(kStreams); ++s) {
      if (const at::Generator generator = kStreams[s].of(here[k]); generator.defined())
        set_state(generator, streams[s][k]);
    }
    set_recurrent_state(here[k], streams.back()[k]);
  }
  if (replicas != nullptr) replicas->note_restored_streams(seed);
}

}  // namespace lockstep::detail
