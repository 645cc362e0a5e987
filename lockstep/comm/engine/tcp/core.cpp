#include "lockstep/comm/engine/tcp/core.h"

#include <algorithm>
#include <chrono>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/status.h"

namespace lockstep::engine {
namespace {

// What the owner of a shard keeps of others' pieces stays below this, however many workers there are.
constexpr std::size_t kMostReceived = 128 << 20;
constexpr std::size_t kLeastChunk = 16 << 10;

MeshStore store_of(const lockstep_store& store) {
  return {.set =
              [store](const std::string& key, const std::string& value) {
                lockstep_status status{};
                if (store.set(store.self, key.c_str(), value.data(), value.size(), &status) != 0) throw Failure(status);
              },
          .get =
              [store](const std::string& key, Deadline deadline) {
                std::string value(4096, '\0');
                std::size_t size = 0;
                lockstep_status status{};
                const double seconds = std::chrono::duration<double>(deadline.remaining()).count();
                if (store.get(store.self, key.c_str(), seconds, value.data(), value.size(), &size, &status) != 0)
                  throw Failure(status);
                value.resize(std::min(size, value.size()));
                return value;
              }};
}

void check(const lockstep_engine_options& options) {
  const auto refuse = [](const std::string& what) {
    throw Failure(Code::InvalidArgument, errors::kBadOption, {.what = what, .help = "see lockstep::EngineOptions"});
  };
  if (options.abi != LOCKSTEP_ENGINE_ABI)
    refuse(str("the engine has ABI ", LOCKSTEP_ENGINE_ABI, ", the caller ", options.abi));
  if (options.workers < 1) refuse(str("workers must be >= 1, got ", options.workers));
  if (options.rank < 0 || options.rank >= options.workers)
    refuse(str("rank must be >= 0 and < ", options.workers, ", got ", options.rank));
  if (options.replicas < 1) refuse(str("replicas must be >= 1, got ", options.replicas));
  if (options.channels < 1) refuse(str("channels must be >= 1, got ", options.channels));
  if (options.chunk_bytes < 64) refuse(str("chunk_bytes must be >= 64, got ", options.chunk_bytes));
  if (options.inline_bytes > 1 << 20) refuse(str("inline_bytes must be <= 1 MB, got ", options.inline_bytes));
}

}  // namespace

Core::Core(const lockstep_engine_options& options, const MakeRing& make_ring)
    : failure_(std::max(1, options.workers), options.channels) {
  check(options);
  const MeshStore store = store_of(options.store);
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(options.connect_seconds));

  ChannelSettings settings;
  settings.replicas = options.replicas;
  settings.call_seconds = options.call_seconds;
  settings.inline_bytes = options.inline_bytes;
  settings.flow.rank = options.rank;
  settings.flow.workers = options.workers;
  settings.flow.plan = plan_sum(options.workers, options.replicas);
  const std::size_t share = kMostReceived / 4 / settings.flow.plan.pieces.size();
  settings.flow.chunk_bytes = std::min<std::size_t>(options.chunk_bytes, std::max(kLeastChunk, share)) / 64 * 64;

  MeshOptions mesh{.rank = options.rank,
                   .workers = options.workers,
                   .channels = options.channels,
                   .address = options.address,
                   .port = options.port,
                   .prefix = options.prefix};
  for (const std::uint64_t setting :
       {std::uint64_t{LOCKSTEP_ENGINE_ABI}, static_cast<std::uint64_t>(options.workers),
        static_cast<std::uint64_t>(options.replicas), static_cast<std::uint64_t>(options.channels), options.chunk_bytes,
        options.inline_bytes, static_cast<std::uint64_t>(options.ring)})
    mesh.settings = (mesh.settings ^ setting) * 0x100000001b3U + 1;
  auto connections = connect_mesh(mesh, store, deadline);
  // Before any channel starts to listen to the others.
  std::vector<std::unique_ptr<RingReducer>> rings(static_cast<std::size_t>(options.channels));
  if (options.ring != 0 && make_ring)
    for (int channel = 0; channel < options.channels; ++channel)
      rings[static_cast<std::size_t>(channel)] = make_ring(mesh, channel, store, deadline);
  for (int channel = 0; channel < options.channels; ++channel) {
    settings.index = channel;
    channels_.push_back(std::make_unique<Channel>(settings, failure_, std::move(connections[channel]),
                                                  std::move(rings[static_cast<std::size_t>(channel)])));
  }
}

Core::~Core() {
  // All at once: each waits a moment for what others still have to receive.
  for (const auto& channel : channels_) channel->stop();
}

std::uint64_t Core::submit(int channel, const lockstep_collective& collective) {
  if (channel < 0 || channel >= static_cast<int>(channels_.size()))
    throw Failure(Code::InvalidArgument, errors::kBadOption,
                  {.what = str("channel must be >= 0 and < ", channels_.size(), ", got ", channel),
                   .help = "make the engine with more channels"});
  const std::uint64_t number = channels_[channel]->submit(collective);
  return number * channels_.size() + static_cast<std::uint64_t>(channel) + 1;
}

void Core::wait(std::uint64_t ticket, double seconds) {
  if (ticket == 0)
    throw Failure(Code::InvalidArgument, errors::kBadOption,
                  {.what = "wait needs a ticket of submit", .help = "pass what submit returned"});
  channels_[(ticket - 1) % channels_.size()]->wait((ticket - 1) / channels_.size(), seconds);
}

std::string Core::log() const {
  std::string text;
  for (const auto& channel : channels_) text += channel->log();
  return text;
}

}  // namespace lockstep::engine
