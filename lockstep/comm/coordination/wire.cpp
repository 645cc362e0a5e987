#include "lockstep/comm/coordination/wire.h"

#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>

#include "coordination.pb.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/grpc_setup.h"
#include "lockstep/comm/coordination/port.h"
#include "lockstep/comm/coordination/stream.h"

namespace lockstep::coordination {
namespace {

using ClientStream = Stream<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>;

class MemberStream final : public ClientStream {
 public:
  MemberStream(std::shared_ptr<grpc::Channel> channel, std::function<void(const wire::FromChief&)> received,
               std::function<void(const std::string&)> ended)
      : channel_(std::move(channel)), stub_(channel_), received_(std::move(received)), ended_(std::move(ended)) {}

  void begin() {
    stub_.PrepareBidiStreamingCall(&context_, "/lockstep.wire.Coordination/Session", grpc::StubOptions(), this);
    AddHold();  // for flush() from other threads; end() releases it
    handed_over(this);
    StartRead(&in_);
    StartCall();
  }

  void cut() {
    {
      std::unique_lock lock(mutex_);
      if (std::exchange(cut_, true)) return;
      quiet_.wait(lock, [&] { return !calling_; });
    }
    context_.TryCancel();
    close();
    flush();
  }

  void OnDone(const grpc::Status& status) override {
    came_back(this);
    call([&] { ended_(status.ok() ? "it ended the session" : status.error_message()); });
    const std::lock_guard lock(mutex_);
    done_ = true;
    quiet_.notify_all();
  }

  // The context holds the channel, and a channel that goes in a thread of gRPC waits there for itself.
  void wait_for_done() {
    std::unique_lock lock(mutex_);
    quiet_.wait(lock, [&] { return done_; });
  }

 private:
  void arrived(const std::string& bytes) override {
    wire::FromChief message;
    // Bytes that are no message come from no chief: the silence is noticed.
    if (message.ParseFromString(bytes)) call([&] { received_(message); });
  }
  void broke() override {}
  void end() override { RemoveHold(); }

  template <class Action>
  void call(Action action) {
    {
      const std::lock_guard lock(mutex_);
      if (cut_) return;
      calling_ = true;
    }
    action();
    {
      const std::lock_guard lock(mutex_);
      calling_ = false;
    }
    quiet_.notify_all();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  const std::function<void(const wire::FromChief&)> received_;
  const std::function<void(const std::string&)> ended_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable quiet_;
  bool calling_ = false;
  bool cut_ = false;
  bool done_ = false;
};

class GrpcWire final : public Wire {
 public:
  explicit GrpcWire(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}
  ~GrpcWire() override {
    if (!stream_) return;
    stream_->cut();
    stream_->wait_for_done();
  }

  void open(std::function<void(const wire::FromChief&)> received,
            std::function<void(const std::string&)> ended) override {
    stream_ = std::make_unique<MemberStream>(channel_, std::move(received), std::move(ended));
    stream_->begin();
  }
  void send(const wire::ToChief& message) override { stream_->send(message.SerializeAsString()); }
  void flush() override { stream_->flush(); }
  void cut() override {
    if (stream_) stream_->cut();
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<MemberStream> stream_;
};

std::string contents(const std::string& path) {
  if (path.empty()) return {};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    throw InvalidArgument(errors::kBadOption, {.what = str("the TLS file ", path, " cannot be read"),
                                               .help = "give the paths of PEM files in JoinOptions::tls"});
  }
  return text.str();
}

}  // namespace

void keep_grpc() {
  static const bool once = (grpc_init(), true);
  static_cast<void>(once);
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& tls) {
  if (!tls.any()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(tls.authority.empty()
                                                ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = contents(tls.authority);
  options.pem_key_cert_pairs = {{contents(tls.private_key), contents(tls.certificate)}};
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& tls) {
  if (!tls.any()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = contents(tls.authority),
                               .pem_private_key = contents(tls.private_key),
                               .pem_cert_chain = contents(tls.certificate)});
}

std::unique_ptr<Wire> connect(const std::string& numeric, const std::string& entry, const TlsFiles& tls) {
  keep_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // This one also limits how long a single attempt may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Sessions of one process must not share a connection, nor find a broken one of an earlier job.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(2 * kMaxMessage));
  if (tls.any()) arguments.SetSslTargetNameOverride(split_address(entry).first);
  const std::string target = (numeric.front() == '[' ? "ipv6:" : "ipv4:") + numeric;
  return std::make_unique<GrpcWire>(grpc::CreateCustomChannel(target, channel_credentials(tls), arguments));
}

}  // namespace lockstep::coordination
