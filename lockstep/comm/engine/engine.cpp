#include "lockstep/comm/engine/engine.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/comm/engine/tcp/channel.h"

namespace lockstep {

struct Engine::Impl {
  explicit Impl(const EngineOptions& options) : settings(options), failure(options.workers, options.channels) {
    auto connections = engine::connect_mesh(settings);
    settings.store = {};
    // Before any channel starts listening to the others.
    std::vector<std::unique_ptr<engine::Ring>> rings(connections.size());
    for (int index = 0; options.ring && index < options.channels; ++index)
      rings[index] = std::make_unique<engine::Ring>(options, index);
    for (int index = 0; index < options.channels; ++index)
      channels.push_back(std::make_unique<engine::Channel>(settings, index, failure, std::move(connections[index]),
                                                           std::move(rings[index])));
  }
  ~Impl() {
    // All at once: each waits a moment for data that others still have to receive.
    for (const auto& channel : channels) channel->stop();
  }

  engine::Settings settings;
  engine::FailureState failure;
  std::vector<std::unique_ptr<engine::Channel>> channels;
};

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;

Engine::Ticket Engine::submit(int channel, const Collective& collective, Deadline limit) {
  auto& channels = impl_->channels;
  if (channel < 0 || channel >= static_cast<int>(channels.size()))
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("channel must be >= 0 and < ", channels.size(), ", got ", channel),
                           .help = "make the engine with more channels"});
  return channels[channel]->submit(collective, limit) * channels.size() + static_cast<Ticket>(channel) + 1;
}

void Engine::wait(Ticket ticket, std::chrono::milliseconds patience, const OnLate& on_late) {
  auto& channels = impl_->channels;
  channels[(ticket - 1) % channels.size()]->wait((ticket - 1) / channels.size(), patience, on_late);
}

void Engine::abort(const Error& reason) { impl_->failure.set(reason); }

std::string Engine::log() const {
  std::string text;
  for (const auto& channel : impl_->channels) text += channel->log();
  return text;
}

}  // namespace lockstep
