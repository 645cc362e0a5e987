#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/credentials.h"
#include "tests/support/logged_lines.h"

namespace lockstep::coordination {

inline const std::string kKey(32, 'k');

/// The messages sent by a chief without a network.
struct Desk : Outbox {
  void send(std::uint64_t connection, wire::FromChief message) override {
    sent.emplace_back(connection, std::move(message));
  }
  void close(std::uint64_t connection) override { closed.push_back(connection); }

  const wire::FromChief& last() const { return sent.back().second; }
  bool is_closed(std::uint64_t connection) const {
    return std::find(closed.begin(), closed.end(), connection) != closed.end();
  }

  std::vector<std::pair<std::uint64_t, wire::FromChief>> sent;
  std::vector<std::uint64_t> closed;
};

/// Drives a Chief by hand.
class AtTheDesk : public ::testing::Test {
 protected:
  static JoinOptions options() {
    return {.members = {{"worker", 0, {"127.0.0.1", 1}}, {"worker", 1, {"127.0.0.1", 2}}}, .cluster = "a"};
  }

  explicit AtTheDesk(const JoinOptions& given = options()) : chief(given, kKey, desk, now) {}

  void say(std::uint64_t connection, const wire::ToChief& message) {
    chief.received(connection, message.SerializeAsString(), now);
  }

  static wire::ToChief hello(int member) {
    wire::ToChief message;
    message.mutable_hello()->set_protocol(kProtocol);
    message.mutable_hello()->set_member(member);
    message.mutable_hello()->set_nonce(std::string(kNonceBytes, 'n'));
    return message;
  }

  wire::ToChief proof(int member, const std::string& key, const std::string& cluster = "a") {
    wire::Details details;
    details.mutable_info()->set_pid(7);
    details.set_cluster(cluster);
    wire::ToChief message;
    message.mutable_proof()->set_details(details.SerializeAsString());
    message.mutable_proof()->set_mac(
        mac_of(key, {"member", std::string(kNonceBytes, 'n'), desk.last().challenge().nonce(), std::to_string(member),
                     message.proof().details()}));
    return message;
  }

  /// Joins and returns the token.
  std::string join(std::uint64_t connection, int member) {
    chief.opened(connection, now);
    say(connection, hello(member));
    say(connection, proof(member, kKey));
    for (const auto& [to, message] : desk.sent) {
      if (to == connection && !message.token().empty()) return message.token();
    }
    ADD_FAILURE() << "not accepted";
    return {};
  }

  LogSilence silence;
  Desk desk;
  Chief::Time now = std::chrono::steady_clock::now();
  Chief chief;
};

}  // namespace lockstep::coordination
