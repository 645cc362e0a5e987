// Hostile bytes at the coordination port: a chief with two members and no network receives the input, a list of
// records: two bytes (the action, and a length) followed by as many bytes:
//
//   0 a stranger's bytes | 1 a message of member 1, to which its token is added | 2 details with a proof that is right
//   3 time passes

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/logging.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/credentials.h"
#include "tests/fuzz/target.h"

using namespace lockstep;
using namespace lockstep::coordination;

namespace {

const std::string kKey(kKeyBytes, 'k');
const std::string kNonce(kNonceBytes, 'n');
constexpr std::uint64_t kMember0 = 1, kMember1 = 2, kFirstStranger = 3, kFirstLate = 1000;

class Desk : public Outbox {
 public:
  Desk() {
    join(kMember0, 0, {});
    join(kMember1, 1, {});
    fuzz_check(chief_.members(Presence::Absent).empty(), "members with the key are let in");
  }

  void send(std::uint64_t connection, wire::FromChief message) override {
    if (!message.token().empty()) tokens_[connection] = message.token();
    if (message.has_challenge()) nonces_[connection] = message.challenge().nonce();
    fuzz_check(message.ByteSizeLong() < 2 * kMaxMessage, "answers fit into a message");
    if (message.has_fault())
      fuzz_check(!error_from(message.fault()).text().help.empty() || from_member_, "errors have help");
  }
  void close(std::uint64_t connection) override { closed_.insert(connection); }

  void hear(int what, std::string_view bytes) {
    switch (what % 4) {
      case 0: return stranger(kFirstStranger + static_cast<std::uint64_t>(what / 4 % 4), bytes);
      case 1: return member(kMember1, std::string(bytes));
      case 2: return join(late_++, what / 4 % 2, bytes);
      default: return pass_time(bytes.size());
    }
  }

  void check() const {
    for (const auto& [connection, token] : tokens_)
      fuzz_check(connection < kFirstStranger, "no connection is admitted without the key, nor in a member's place");
    fuzz_check(!closed_.contains(kMember0), "strangers and one member do not end another's session");
    fuzz_check(chief_.members(Presence::Here).size() <= 2, "there are no more members than places");
  }

 private:
  void stranger(std::uint64_t connection, std::string_view bytes) {
    if (!closed_.contains(connection) && strangers_.insert(connection).second) chief_.opened(connection, now_);
    chief_.received(connection, std::string(bytes), now_);
  }

  void member(std::uint64_t connection, const std::string& bytes) {
    wire::ToChief message;
    message.ParsePartialFromString(bytes);
    message.set_token(tokens_[connection]);
    message.set_generation(chief_.generation());
    from_member_ = true;  // a member's report is passed on unchanged
    chief_.received(connection, message.SerializeAsString(), now_);
  }

  void join(std::uint64_t connection, int id, std::string_view details) {
    chief_.opened(connection, now_);
    wire::ToChief hello, proof;
    hello.mutable_hello()->set_protocol(kProtocol);
    hello.mutable_hello()->set_member(id);
    hello.mutable_hello()->set_nonce(kNonce);
    chief_.received(connection, hello.SerializeAsString(), now_);
    proof.mutable_proof()->set_details(std::string(details));
    proof.mutable_proof()->set_mac(mac_of(kKey, {"member", kNonce, nonces_[connection], std::to_string(id), details}));
    chief_.received(connection, proof.SerializeAsString(), now_);
    if (connection >= kFirstLate) chief_.closed(connection, now_);
  }

  void pass_time(std::size_t amount) {
    now_ += std::chrono::milliseconds(100 * amount);
    wire::ToChief beat;
    beat.set_beat("call 1 of run");
    member(kMember0, beat.SerializeAsString());
    chief_.tick(now_);
  }

  std::map<std::uint64_t, std::string> tokens_, nonces_;
  std::set<std::uint64_t> closed_, strangers_;
  std::uint64_t late_ = kFirstLate;
  bool from_member_ = false;
  Chief::Time now_ = std::chrono::steady_clock::now();
  Chief chief_{{.members = {{"worker", 0, {"127.0.0.1", 1}}, {"worker", 1, {"127.0.0.1", 2}}}}, kKey, *this, now_};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  set_log_severity(Severity::Silent);
  Desk desk;
  for (std::string_view rest(reinterpret_cast<const char*>(data), size); rest.size() >= 2;) {
    const auto what = static_cast<unsigned char>(rest[0]);
    const std::size_t length = std::min<std::size_t>(static_cast<unsigned char>(rest[1]), rest.size() - 2);
    desk.hear(what, rest.substr(2, length));
    rest.remove_prefix(2 + length);
  }
  desk.check();
  return 0;
}
