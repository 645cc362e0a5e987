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
#include "lockstep/comm/coordination/reception.h"
#include "lockstep/comm/coordination/stream.h"
#include "lockstep/comm/socket.h"
#include "lockstep/comm/way_probe.h"

namespace lockstep::coordination {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
// Whether looking up this host needs no name server.
bool is_numeric(const std::string& host) {
  return host.find(':') != std::string::npos || host.find_first_not_of("0123456789.") == std::string::npos;
}

// gRPC writes "ipv6:%5B::1%5D:4711" for "[::1]:4711".
std::string name_of_peer(const std::string& peer) {
  std::string name;
  for (std::size_t i = peer.find(':') + 1; i < peer.size(); ++i) {
    const bool is_code = peer[i] == '%' && i + 2 < peer.size();
    name += is_code ? static_cast<char>(std::stoi(peer.substr(i + 1, 2), nullptr, 16)) : peer[i];
    if (is_code) i += 2;
  }
  return name;
}

using ServerReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Turns streams into calls of the Chief, and its answers into writes.
class GrpcServer final : public Server,
                         public wire::Coordination::WithRawCallbackMethod_Session<wire::Coordination::Service>,
                         public Outbox {
 public:
  GrpcServer(const JoinOptions& options, const std::string& key, Descriptor port)
      : members_(options.members), chief_(options, key, *this, Clock::now()) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 5000);  // without a session
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 4 << 10);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessage));
    builder.SetResourceQuota(grpc::ResourceQuota("coordination").Resize(256 << 20));
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials(options.tls));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      throw Unavailable(errors::kPortInUse,
                        {.what = str("the service cannot start on ",
                                     to_string(options.members.at(static_cast<std::size_t>(options.chief)).address)),
                         .help = "check the certificate files"});
    }
    std::vector<std::string> hosts;
    for (const WorkerEntry& member : options.members) {
      if (is_numeric(member.address.host)) hosts.push_back(host_of(look_up(member.address).front()));
    }
    reception_ = std::make_unique<Reception>(std::move(port), places_for(hosts), [this](int socket) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = socket;
      handed_over(this);
      acceptor_->HandleNewConnection(&connection);
    });
    reception_->start();
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
    reception_->stop();  // streams may still ask for it
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

  void keep_places_for(const std::vector<std::string>& hosts) override { reception_->set_places(places_for(hosts)); }

  ServerReactor* Session(grpc::CallbackServerContext* context) override {
    came_back(this);
    std::shared_ptr<Visit> visit;
    with_chief([&](Chief& chief) {
      const std::uint64_t connection = next_connection_++;
      visit = streams_[connection] = std::make_shared<Visit>(*this, connection, name_of_peer(context->peer()));
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
    Visit(GrpcServer& server, std::uint64_t connection, std::string peer)
        : server_(server), connection_(connection), peer_(std::move(peer)) {}

    const std::string& peer() const { return peer_; }

    void OnDone() override {
      from_grpc();
      to_grpc();
      server_.forget(connection_);  // destroys this, unless another thread is about to write
    }

   private:
    void arrived(const std::string& bytes) override {
      bool is_admitted = false;
      server_.with_chief([&](Chief& chief) {
        chief.received(connection_, bytes, Clock::now());
        is_admitted = chief.is_admitted(connection_);
      });
      if (is_admitted && !std::exchange(was_admitted_, true)) server_.reception_->proved(peer_);
    }
    void broke() override {
      server_.with_chief([&](Chief& chief) { chief.closed(connection_, Clock::now()); });
    }
    void end() override { this->Finish(grpc::Status::OK); }

    GrpcServer& server_;
    const std::uint64_t connection_;
    const std::string peer_;
    bool was_admitted_ = false;  // messages come one at a time
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
    std::map<int, WayProbe> probes;  // probes of members in doubt
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, tick, [&] { return over_; })) {
      lock.unlock();
      const auto now = Clock::now();
      for (auto& [member, probe] : probes) probe.ask(now);
      with_chief([&](Chief& chief) {
        for (const auto& [member, probe] : probes) chief.note_answers(member, probe.answers());
        chief.tick(now);
        keep_probes(probes, chief.in_doubt(now));
      });
      lock.lock();
    }
  }

  // A name could take long to look up, so probes go to the address that the member connected from, at the port of its
  // entry.
  void keep_probes(std::map<int, WayProbe>& probes, const std::vector<Chief::Doubted>& doubted) {
    std::erase_if(probes, [&](const auto& one) {
      return std::ranges::none_of(doubted, [&](const auto& each) { return each.member == one.first; });
    });
    for (const auto& [member, connection] : doubted) {
      const auto stream = streams_.find(connection);
      if (stream == streams_.end() || probes.contains(member)) continue;
      const std::uint16_t port = members_[static_cast<std::size_t>(member)].address.port;
      const auto found = look_up({parse_address(stream->second->peer()).host, port});
      if (!found.empty()) probes.emplace(member, WayProbe(found.front()));
    }
  }

  const std::vector<WorkerEntry> members_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Chief chief_;
  bool over_ = false;
  std::uint64_t next_connection_ = 1;
  std::map<std::uint64_t, std::shared_ptr<Visit>> streams_;
  std::vector<std::shared_ptr<Visit>> touched_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Reception> reception_;
  std::thread clock_;
};

}  // namespace

std::unique_ptr<Server> Server::start(const JoinOptions& options, const std::string& key, Descriptor port) {
  keep_grpc();
  return std::make_unique<GrpcServer>(options, key, std::move(port));
}

}  // namespace lockstep::coordination
