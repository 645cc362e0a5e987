#include "lockstep/comm/coordination/wire.h"
#include "lockstep/comm/coordination/credentials.h"

#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <utility>

#include "lockstep/comm/coordination/stream.h"

namespace lockstep::coordination {
namespace {

class GrpcWire final : public Wire, public Stream<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  GrpcWire(std::shared_ptr<grpc::Channel> channel, Callbacks callbacks)
      : channel_(std::move(channel)), stub_(channel_), callbacks_(std::move(callbacks)) {
    stub_.PrepareBidiStreamingCall(&context_, "/lockstep.wire.Coordination/Session", grpc::StubOptions(), this);
    AddHold();  // for send() from other threads; end() releases it
    start_read();
    StartCall();
  }

  // The context holds the channel, and a channel released on a gRPC thread would wait there for itself.
  ~GrpcWire() override {
    cut();
    std::unique_lock lock(mutex_);
    quiet_.wait(lock, [&] { return done_; });
  }

  void send(const wire::ToChief& message) override {
    queue(message.SerializeAsString());
    write_queued();
  }
  bool is_heard() const override { return channel_->GetState(false) == GRPC_CHANNEL_READY; }

  void cut() override {
    std::unique_lock lock(mutex_);  // held by a callback while it runs
    if (std::exchange(cut_, true)) return;
    lock.unlock();
    context_.TryCancel();
    close();
    write_queued();
  }

  void OnDone(const grpc::Status& status) override {
    from_grpc();
    call([&] { callbacks_.ended(status.ok() ? "it ended the session" : status.error_message()); });
    const std::lock_guard lock(mutex_);
    done_ = true;
    quiet_.notify_all();
  }

 private:
  void arrived(const std::string& bytes) override {
    wire::FromChief message;
    // Bytes that are not a message do not come from a chief: its silence will be noticed.
    if (message.ParseFromString(bytes)) call([&] { callbacks_.received(message); });
  }
  void end() override { RemoveHold(); }

  template <class Action>
  void call(Action action) {
    const std::lock_guard lock(mutex_);
    if (!cut_) action();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  const Callbacks callbacks_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable quiet_;
  bool cut_ = false;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Wire> connect(const std::string& numeric, const std::string& host, const TlsFiles& tls,
                              Wire::Callbacks callbacks) {
  keep_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // This one also limits the duration of a single attempt.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Sessions of one process must not share a connection, nor reuse a broken one of an earlier job.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(2 * kMaxMessage));
  if (tls.any()) arguments.SetSslTargetNameOverride(host);
  const auto credentials =
      tls.any() ? grpc::SslCredentials({read_pem(tls.authority), read_pem(tls.private_key), read_pem(tls.certificate)})
                : grpc::InsecureChannelCredentials();
  const std::string target = (numeric.front() == '[' ? "ipv6:" : "ipv4:") + numeric;
  return std::make_unique<GrpcWire>(grpc::CreateCustomChannel(target, credentials, arguments), std::move(callbacks));
}

}  // namespace lockstep::coordination
