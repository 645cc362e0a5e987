// Strangers at the chief's port, and at the port that a worker keeps: all they achieve is to be dropped.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/credentials.h"
#include "lockstep/comm/disagreement.h"
#include "lockstep/comm/socket.h"
#include "tests/support/chief_desk.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/member_processes.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

namespace lockstep::coordination {
namespace {

using namespace std::chrono_literals;

TEST_F(AtTheDesk, TheKeyIsProvedByBothSides) {
  chief.opened(1, now);
  say(1, hello(1));
  EXPECT_EQ(desk.last().challenge().mac(),
            mac_of(kKey, {"chief", std::string(kNonceBytes, 'n'), desk.last().challenge().nonce()}));
  say(1, proof(1, kKey));
  EXPECT_FALSE(desk.last().token().empty());
}

TEST_F(AtTheDesk, AWrongProofIsRefused) {
  chief.opened(1, now);
  say(1, hello(1));
  say(1, proof(1, std::string(32, 'x')));
  EXPECT_EQ(error_from(desk.last().fault()).number(), errors::kJobKey);
  EXPECT_TRUE(desk.is_closed(1));
}

TEST_F(AtTheDesk, AProofThatWasOverheardIsWorthNothing) {
  chief.opened(1, now);
  say(1, hello(1));
  const wire::ToChief overheard = proof(1, kKey);
  chief.opened(2, now);
  say(2, hello(1));
  say(2, overheard);
  EXPECT_EQ(error_from(desk.last().fault()).number(), errors::kJobKey);
  EXPECT_TRUE(desk.is_closed(2));
}

TEST_F(AtTheDesk, AProcessThatComesBackBeforeItsEndIsSeenIsNoSecondOne) {
  join(1, 0);
  join(2, 1);
  chief.opened(3, now);
  say(3, hello(1));
  say(3, proof(1, kKey));
  EXPECT_TRUE(desk.last().has_challenge()) << "it is not refused";
  EXPECT_TRUE(desk.is_closed(3)) << "it may try again";
  EXPECT_FALSE(desk.is_closed(2));
}

TEST_F(AtTheDesk, MessagesNeedTheTokenAndTheGeneration) {
  const std::string token = join(1, 0);
  join(2, 1);
  wire::ToChief message;
  message.mutable_call()->set_verb(wire::Call::SET);
  message.mutable_call()->set_key("a");
  message.set_token(token);
  message.set_generation(chief.generation());
  say(1, message);
  EXPECT_TRUE(desk.last().has_value());
  message.set_generation(chief.generation() + 1);
  say(1, message);
  EXPECT_TRUE(desk.is_closed(1));
  message.set_generation(chief.generation());
  say(2, message);  // with the token of member 0
  EXPECT_TRUE(desk.is_closed(2));
}

TEST_F(AtTheDesk, ThousandsOfBrokenMessagesLetNobodyIn) {
  std::mt19937 random(17);
  const std::string sound = hello(1).SerializeAsString();
  for (std::uint64_t connection = 1; connection <= 5000; ++connection) {
    chief.opened(connection, now);
    for (int k = 0; k < 3 && !desk.is_closed(connection); ++k) {
      std::string bytes = sound;
      if (k == 2 || random() % 4 == 0) bytes.resize(random() % 300, 'z');
      for (auto flips = random() % 6; flips > 0 && !bytes.empty(); --flips)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      chief.received(connection, bytes, now);
    }
    chief.closed(connection, now);
    for (const auto& [to, message] : desk.sent) ASSERT_TRUE(message.token().empty());
    desk.sent.clear();
    desk.closed.clear();
  }
  EXPECT_EQ(chief.members(Presence::Absent).size(), 2u);
}

TEST_F(AtTheDesk, BrokenMessagesOfAMemberEndOnlyItsSession) {
  std::mt19937 random(18);
  const std::string token = join(1, 0);
  join(2, 1);
  wire::ToChief message;
  message.mutable_call()->set_verb(wire::Call::BARRIER);
  message.mutable_call()->set_key("barrier");
  message.set_token(token);
  message.set_generation(chief.generation());
  const std::string sound = message.SerializeAsString();
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = sound;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    chief.received(1, bytes, now);
    chief.tick(now);
  }
  EXPECT_FALSE(desk.is_closed(2));
}

TEST_F(AtTheDesk, StrangersThatSayNothingAreDropped) {
  for (std::uint64_t connection = 1; connection <= 100; ++connection) chief.opened(connection, now);
  EXPECT_TRUE(desk.is_closed(100));
  EXPECT_FALSE(desk.is_closed(1));
  chief.tick(now + 6s);
  EXPECT_TRUE(desk.is_closed(1));
}

int connect_to(const std::string& address) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return socket;
}

TEST(HostileBytes, AtThePortsOfARunningJobDisturbNobody) {
  const Watchdog watchdog(100s, "hostile bytes");
  const auto addresses = free_addresses(2);
  MemberProcess chief(0, addresses, {"heartbeat=100"});
  MemberProcess other(1, addresses, {"heartbeat=100"});
  EXPECT_NE(chief.await("joined"), "");
  EXPECT_NE(other.await("joined"), "");
  std::mt19937 random(19);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  for (int i = 0; i < 600; ++i) {
    const int socket = connect_to(addresses[static_cast<std::size_t>(i % 8 == 7)]);
    std::string bytes;
    if (i % 3 != 0) bytes = preface + (i % 3 == 1 ? settings : "");
    for (auto frames = 1 + random() % 8; frames > 0; --frames) {
      std::string frame(9 + random() % 64, '\0');
      for (char& c : frame) c = static_cast<char>(random());
      if (i % 2 == 0) {  // a frame of valid length, as HTTP/2 counts it
        frame[0] = frame[1] = 0;
        frame[2] = static_cast<char>(frame.size() - 9);
        frame[3] = static_cast<char>(random() % 11);
      }
      bytes += frame;
    }
    EXPECT_GE(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    ::close(socket);
  }
  other.send_line("barrier after 20000");
  EXPECT_EQ(chief.ask("barrier after 20000"), "ok ");
  EXPECT_EQ(other.await_answer(), "ok ");
  EXPECT_EQ(chief.ask("states").find("lost"), std::string::npos);
  for (MemberProcess* one : {&other, &chief}) one->send_line("quit");
  EXPECT_EQ(other.wait(), 0) << other.output();
  EXPECT_EQ(chief.wait(), 0) << chief.output();
}

TEST(JobKey, ComesFromAFileOnlyItsOwnerCanRead) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "key";
  std::ofstream(path) << std::string(64, 'a') << "\n";
  ::setenv("LOCKSTEP_JOB_KEY_FILE", path.c_str(), 1);
  ::chmod(path.c_str(), 0644);
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"mode 0600"});
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(find_job_key(), std::string(32, '\xaa'));
  std::ofstream(path) << "short";
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"32 bytes", "holds 5 bytes"});
  std::ofstream(path) << "ab" << std::string(62, '\0');
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"32 bytes", "holds 64 bytes"});
  std::ofstream(path).close();
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"cannot be read", "it is empty"});
  std::filesystem::remove(path);
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"No such file or directory"});
  std::filesystem::create_directory(path);
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"Is a directory"});
  ::unsetenv("LOCKSTEP_JOB_KEY_FILE");
  ::setenv("LOCKSTEP_JOB_KEY", "xyz", 1);
  expect_error([] { find_job_key(); }, Code::FailedPrecondition, errors::kJobKey, {"64 hexadecimal digits"});
  ::unsetenv("LOCKSTEP_JOB_KEY");
  EXPECT_EQ(find_job_key(), "");
  // Bytes cannot move from one part to the next.
  EXPECT_NE(mac_of(kKey, {"ab", "c"}), mac_of(kKey, {"a", "bc"}));
}

TEST(Words, DifferencesShowTheLinesThatDiffer) {
  EXPECT_EQ(difference({"a", {"1", "2"}}, {"b", {"1", "2"}}), "");
  EXPECT_EQ(difference({"a", {"1", "2", "3"}}, {"b", {"1", "3"}}), "a has \"2\", b has nothing");
  EXPECT_EQ(list_of({"a", "b", "c"}, 2), "a and 2 more");
}

TEST(Address, OfLoopbackIsFoundByLookingItUp) {
  EXPECT_TRUE(is_on_loopback({"127.0.0.1", 1}));
  EXPECT_TRUE(is_on_loopback({"localhost", 1}));
  EXPECT_TRUE(is_on_loopback({"::1", 1}));
  EXPECT_FALSE(is_on_loopback({"192.0.2.1", 1}));
  EXPECT_EQ(probe({{"127.0.0.1", 22}}, 0ms)[0].target, "127.0.0.1:22");
  EXPECT_EQ(probe({{"no-such-host.invalid", 22}}, 0ms)[0].target, "");
}

}  // namespace
}  // namespace lockstep::coordination
