#include "lockstep/comm/coordination/credentials.h"
#include "lockstep/comm/coordination/wire.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "coordination.grpc.pb.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/stream.h"
#include "lockstep/comm/socket.h"

namespace lockstep::coordination {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using ServerReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Turns streams into calls of the Chief, and its answers into writes.
class GrpcServer final : public Server,
                         public wire::Coordination::WithRawCallbackMethod_Session<wire::Coordination::Service>,
                         public Outbox {
 public:
  GrpcServer(const JoinOptions& options, const std::string& key) : chief_(options, key, *this, Clock::now()) {
    const Address& entry = options.members.front().address;
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 4 << 10);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessage));
    builder.SetResourceQuota(grpc::ResourceQuota("coordination").Resize(256 << 20));
    builder.AddListeningPort(to_string(look_up(entry).front()), credentials(options.tls));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      throw Unavailable(errors::kPortInUse, {.what = str("the service cannot listen on ", to_string(entry)),
                                             .help = "check the certificate files, and that the port is free"});
    }
    const milliseconds tick =
        std::clamp<milliseconds>(options.heartbeat_interval / 10, milliseconds(5), milliseconds(50));
    clock_ = std::thread([this, tick] { run_clock(tick); });
  }

  ~GrpcServer() override {
    with_chief([this](Chief&) {
      over_ = true;
      for (const auto& [connection, stream] : streams_) close(connection);
    });
    changed_.notify_all();
    clock_.join();
    std::unique_lock lock(mutex_);
    const auto all_gone = [this] { return streams_.empty(); };
    changed_.wait_for(lock, milliseconds(300), all_gone);
    lock.unlock();
    server_->Shutdown(std::chrono::system_clock::now() + milliseconds(100));
    lock.lock();
    changed_.wait(lock, all_gone);
  }

  void with_chief(FunctionRef<void(Chief&)> action) override {
    std::unique_lock lock(mutex_);
    action(chief_);
    const auto touched = std::exchange(touched_, {});
    lock.unlock();
    for (const auto& stream : touched) stream->write_queued();
  }

  void flush() override {
    for (const Deadline deadline = Deadline::after(milliseconds(100)); !deadline.expired();) {
      std::unique_lock lock(mutex_);
      if (std::ranges::all_of(streams_, [](const auto& one) { return one.second->idle(); })) return;
      lock.unlock();
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  ServerReactor* Session(grpc::CallbackServerContext*) override {
    std::shared_ptr<Visit> visit;
    with_chief([&](Chief& chief) {
      const std::uint64_t connection = next_connection_++;
      visit = streams_[connection] = std::make_shared<Visit>(*this, connection);
      chief.opened(connection, Clock::now());
    });
    visit->start_read();
    return visit.get();
  }

  void send(std::uint64_t connection, wire::FromChief message) override {
    if (const auto found = streams_.find(connection); found != streams_.end()) {
      found->second->queue(message.SerializeAsString());
      touched_.push_back(found->second);
    }
  }

  void close(std::uint64_t connection) override {
    if (const auto found = streams_.find(connection); found != streams_.end()) {
      found->second->close();
      touched_.push_back(found->second);
    }
  }

 private:
  class Visit final : public Stream<ServerReactor> {
   public:
    Visit(GrpcServer& server, std::uint64_t connection) : server_(server), connection_(connection) {}

    void OnDone() override {
      came_back(this);
      handed_over(this);
      server_.forget(connection_);  // destroys this, unless somebody is about to write
    }

   private:
    void arrived(const std::string& bytes) override {
      server_.with_chief([&](Chief& chief) { chief.received(connection_, bytes, Clock::now()); });
    }
    void broke() override {
      server_.with_chief([&](Chief& chief) { chief.closed(connection_, Clock::now()); });
    }
    void end() override { this->Finish(grpc::Status::OK); }

    GrpcServer& server_;
    const std::uint64_t connection_;
  };

  static std::shared_ptr<grpc::ServerCredentials> credentials(const TlsFiles& tls) {
    if (!tls.any()) return grpc::InsecureServerCredentials();
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = read_pem(tls.authority);
    options.pem_key_cert_pairs = {{read_pem(tls.private_key), read_pem(tls.certificate)}};
    return grpc::SslServerCredentials(options);
  }

  void forget(std::uint64_t connection) {
    const std::lock_guard lock(mutex_);
    streams_.erase(connection);
    changed_.notify_all();
  }

  void run_clock(milliseconds tick) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, tick, [&] { return over_; })) {
      lock.unlock();
      with_chief([](Chief& chief) { chief.tick(Clock::now()); });
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Chief chief_;
  bool over_ = false;
  std::uint64_t next_connection_ = 1;
  std::map<std::uint64_t, std::shared_ptr<Visit>> streams_;
  std::vector<std::shared_ptr<Visit>> touched_;
  std::unique_ptr<grpc::Server> server_;
  std::thread clock_;
};

}  // namespace

std::unique_ptr<Server> Server::start(const JoinOptions& options, const std::string& key) {
  keep_grpc();
  return std::make_unique<GrpcServer>(options, key);
}

}  // namespace lockstep::coordination
