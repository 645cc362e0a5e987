#include "lockstep/comm/coordination/server.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "coordination.grpc.pb.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/grpc_setup.h"
#include "lockstep/comm/coordination/port.h"
#include "lockstep/comm/coordination/stream.h"

namespace lockstep::coordination {
namespace {

using Clock = std::chrono::steady_clock;
using ServerReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ServerStream = Stream<ServerReactor>;

// Turns streams into calls of the Chief, one at a time, and its answers into writes.
class Desk final : public wire::Coordination::WithRawCallbackMethod_Session<wire::Coordination::Service>,
                   public Outbox {
 public:
  Desk(const JoinOptions& options, const std::string& key)
      : chief_(options, key, *this, Clock::now()),
        tick_(std::clamp<std::chrono::milliseconds>(options.heartbeat_interval / 10, std::chrono::milliseconds(5),
                                                    std::chrono::milliseconds(50))),
        clock_([this] { run_clock(); }) {}

  ~Desk() override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    clock_.join();
  }

  template <class Action>
  auto with_chief(Action action) {
    std::vector<std::shared_ptr<ServerStream>> touched;
    const auto flush = [&] {
      for (const auto& stream : touched) stream->flush();
    };
    if constexpr (std::is_void_v<decltype(action(chief_))>) {
      {
        const std::lock_guard lock(mutex_);
        action(chief_);
        touched.swap(touched_);
      }
      flush();
    } else {
      std::unique_lock lock(mutex_);
      auto result = action(chief_);
      touched.swap(touched_);
      lock.unlock();
      flush();
      return result;
    }
  }

  ServerReactor* Session(grpc::CallbackServerContext* context) override;

  void send(std::uint64_t connection, wire::FromChief message) override {
    if (const auto found = streams_.find(connection); found != streams_.end()) {
      found->second->send(message.SerializeAsString());
      touched_.push_back(found->second);
    }
  }

  void close(std::uint64_t connection) override {
    if (const auto found = streams_.find(connection); found != streams_.end()) {
      found->second->close();
      touched_.push_back(found->second);
    }
  }

  void forget(std::uint64_t connection) {
    const std::lock_guard lock(mutex_);
    streams_.erase(connection);
    ended_.notify_all();
  }

  // Whether everything that was sent has gone out.
  void drain(const Deadline& deadline) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        const bool idle =
            std::all_of(streams_.begin(), streams_.end(), [](const auto& one) { return one.second->idle(); });
        if (idle || deadline.expired()) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  void wait_for_all_to_end() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return streams_.empty(); });
  }

 private:
  class Visit;

  void run_clock() {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, tick_, [&] { return over_; })) {
      chief_.tick(Clock::now());
      std::vector<std::shared_ptr<ServerStream>> touched;
      touched.swap(touched_);
      lock.unlock();
      for (const auto& stream : touched) stream->flush();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  Chief chief_;
  bool over_ = false;
  std::uint64_t next_connection_ = 1;
  std::map<std::uint64_t, std::shared_ptr<ServerStream>> streams_;
  std::vector<std::shared_ptr<ServerStream>> touched_;
  const std::chrono::milliseconds tick_;
  std::thread clock_;
};

class Desk::Visit final : public ServerStream {
 public:
  Visit(Desk& desk, std::uint64_t connection) : desk_(desk), connection_(connection) {}

  void begin() {
    handed_over(this);
    this->StartRead(&in_);
  }

  void OnDone() override {
    came_back(this);
    handed_over(this);
    desk_.forget(connection_);  // destroys this, unless somebody is about to flush
  }

 private:
  void arrived(const std::string& bytes) override {
    desk_.with_chief([&](Chief& chief) { chief.received(connection_, bytes, Clock::now()); });
  }
  void broke() override {
    desk_.with_chief([&](Chief& chief) { chief.closed(connection_, Clock::now()); });
  }
  void end() override { this->Finish(grpc::Status::OK); }

  Desk& desk_;
  const std::uint64_t connection_;
};

ServerReactor* Desk::Session(grpc::CallbackServerContext*) {
  std::shared_ptr<Visit> session;
  with_chief([&](Chief& chief) {
    const std::uint64_t connection = next_connection_++;
    session = std::make_shared<Visit>(*this, connection);
    streams_[connection] = session;
    chief.opened(connection, Clock::now());
  });
  session->begin();
  return session.get();
}

}  // namespace

struct Server::Parts {
  explicit Parts(const JoinOptions& options, const std::string& key) : desk(options, key) {}

  Desk desk;
  std::unique_ptr<grpc::Server> server;
};

Server::Server(const JoinOptions& options, const std::string& key) {
  const Member& entry = options.members.front();
  keep_grpc();
  // gRPC says only that it failed; our own socket knows why and who is in the way.
  HeldPort::hold(entry).release();
  parts_ = std::make_unique<Parts>(options, key);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 4 << 10);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessage));
  builder.SetResourceQuota(grpc::ResourceQuota("coordination").Resize(256 << 20));
  int port = 0;
  builder.AddListeningPort(numeric_address(entry.address), server_credentials(options.tls), &port);
  builder.RegisterService(&parts_->desk);
  parts_->server = builder.BuildAndStart();
  if (parts_->server == nullptr || port == 0) {
    HeldPort::hold(entry).release();
    throw Unavailable(errors::kPortInUse, {.what = str("the service cannot listen on ", entry.address),
                                           .help = "check the certificate files, and that the port is free"});
  }
}

Server::~Server() {
  if (parts_) shut_down();
}

std::vector<Member> Server::missing() const {
  return parts_->desk.with_chief([](Chief& chief) { return chief.missing(); });
}

void Server::announce(const std::string& missing_text) {
  parts_->desk.with_chief([&](Chief& chief) { chief.announce(missing_text); });
}

void Server::fail(const Failure& failure) {
  parts_->desk.with_chief([&](Chief& chief) { chief.fail(failure); });
}

std::vector<std::string> Server::others_here() const {
  return parts_->desk.with_chief([](Chief& chief) { return chief.others_here(); });
}

void Server::flush() { parts_->desk.drain(Deadline::after(std::chrono::milliseconds(100))); }

void Server::shut_down() {
  if (!parts_->server) return;
  parts_->desk.drain(Deadline::after(std::chrono::milliseconds(300)));
  parts_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  parts_->desk.wait_for_all_to_end();
  parts_->server.reset();
}

}  // namespace lockstep::coordination
