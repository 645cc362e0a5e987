// Floods of connections at the chief's port, by processes that do not know the job key.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/socket.h"
#include "tests/support/certificates.h"
#include "tests/support/member_processes.h"
#include "tests/support/watchdog.h"

namespace lockstep::coordination {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kPreface{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33};

/// Connections of one process, open while this object exists.
class Flood {
 public:
  /// Some of them may still wait for an answer when this returns.
  Flood(const std::string& address, int count) {
    const SocketAddress to = look_up(parse_address(address)).front();
    for (int i = 0; i < count; ++i) {
      Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      EXPECT_TRUE(socket);
      ::connect(socket.get(), to.get(), to.size);
      sockets_.push_back(std::move(socket));
      if (i % 500 == 499) std::this_thread::sleep_for(5ms);
    }
  }
  void send(std::string_view bytes) const {
    for (const Descriptor& socket : sockets_) ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void reset() {
    const linger at_once{1, 0};
    for (const Descriptor& socket : sockets_)
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    sockets_.clear();
  }
  /// How many the other side has not closed.
  int open() const {
    int count = 0;
    for (const Descriptor& socket : sockets_) {
      char byte = 0;
      const ssize_t got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT);
      count += got > 0 || (got < 0 && errno == EAGAIN) ? 1 : 0;
    }
    return count;
  }

 private:
  std::vector<Descriptor> sockets_;
};

int open_files(pid_t pid) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(str("/proc/", pid, "/fd")), {}));
}

class Strangers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    most = static_cast<int>(std::min<rlim_t>(files.rlim_max, 13'000)) - 1'000;
  }

  static Strings with_files(int limit) { return {"sh", "-c", str("ulimit -n ", limit, "; exec \"$@\""), "sh"}; }

  /// The other member comes; both meet and leave.
  void expect_the_job_to_form(MemberProcess& chief) {
    MemberProcess other(1, addresses, {"join=20000", "heartbeat=100"});
    EXPECT_NE(chief.await("joined", 20s), "");
    EXPECT_NE(other.await("joined", 20s), "");
    meet_and_leave(chief, other);
  }
  static void meet_and_leave(MemberProcess& chief, MemberProcess& other) {
    other.send_line("barrier after 20000");
    EXPECT_EQ(chief.ask("barrier after 20000"), "ok ");
    EXPECT_EQ(other.await_answer(), "ok ");
    EXPECT_FALSE(contains(chief.ask("states"), "lost"));
    for (MemberProcess* one : {&other, &chief}) one->send_line("quit");
    EXPECT_EQ(other.wait(), 0) << other.output();
    EXPECT_EQ(chief.wait(), 0) << chief.output();
  }

  const Strings addresses = free_addresses(2);
  static inline int most = 0;  ///< connections that this process can hold

 private:
  const Watchdog watchdog_{100s, "a flood"};
};

TEST_F(Strangers, OneAndAHalfTimesTheLimitOfOpenFilesDoNotEndTheJob) {
  MemberProcess chief(0, addresses, {"log=100", "heartbeat=100", "join=60000"}, with_files(1024));
  ASSERT_NE(chief.await("log worker 0: waiting for worker 1"), "");
  { const Flood flood(addresses[0], std::min(most, 1500)); }
  expect_the_job_to_form(chief);
}

TEST_F(Strangers, WithTlsNeither) {
  const CertificateAuthority authority;
  if (!authority.made()) GTEST_SKIP() << "needs the program openssl";
  const TlsFiles files = authority.sign("host");
  ::setenv("LOCKSTEP_TLS_AUTHORITY", files.authority.c_str(), 1);
  ::setenv("LOCKSTEP_TLS_CERTIFICATE", files.certificate.c_str(), 1);
  ::setenv("LOCKSTEP_TLS_KEY", files.private_key.c_str(), 1);
  {
    MemberProcess chief(0, addresses, {"log=100", "heartbeat=100", "join=60000"}, with_files(1024));
    ASSERT_NE(chief.await("log worker 0: waiting for worker 1"), "");
    Flood silent(addresses[0], std::min(most, 1500));
    { const Flood flood(addresses[0], std::min(most, 1500)); }
    expect_the_job_to_form(chief);
  }
  for (const char* name : {"LOCKSTEP_TLS_AUTHORITY", "LOCKSTEP_TLS_CERTIFICATE", "LOCKSTEP_TLS_KEY"}) ::unsetenv(name);
}

TEST_F(Strangers, WhoStayOrSpeakKeepNobodyOutAndAreClosed) {
  MemberProcess chief(0, addresses, {"log=100", "heartbeat=100", "join=60000"}, with_files(256));
  ASSERT_NE(chief.await("log worker 0: waiting for worker 1"), "");
  const int before = open_files(chief.pid());
  const Flood silent(addresses[0], std::min(most, 1500));
  Flood speaking(addresses[0], 300);
  speaking.send(kPreface);
  MemberProcess other(1, addresses, {"join=20000", "heartbeat=100"});
  EXPECT_NE(chief.await("joined", 20s), "");
  EXPECT_NE(other.await("joined", 20s), "");
  EXPECT_LT(open_files(chief.pid()), before + 120);
  for (const Deadline end = Deadline::after(20s); silent.open() + speaking.open() > 0 && !end.expired();)
    std::this_thread::sleep_for(100ms);
  EXPECT_EQ(silent.open() + speaking.open(), 0);
  EXPECT_LE(open_files(chief.pid()), before + 10);
  meet_and_leave(chief, other);
}

TEST_F(Strangers, ThousandsResetAtOnceDisturbNoTraining) {
  MemberProcess chief(0, addresses, {"heartbeat=100", "dead=2000"});
  MemberProcess other(1, addresses, {"heartbeat=100", "dead=2000"});
  ASSERT_NE(chief.await("joined"), "");
  ASSERT_NE(other.await("joined"), "");
  const int before = open_files(chief.pid());
  const long memory = chief.status("VmRSS");
  for (int round = 0; round < 3; ++round) {
    Flood flood(addresses[0], most);
    if (round == 1) flood.send(kPreface);
    EXPECT_LT(open_files(chief.pid()), before + 120);
    flood.reset();
    EXPECT_LT(open_files(chief.pid()), before + 120);
  }
  const long grown = chief.status("VmHWM") - memory;
  std::printf("    %d connections, three times: %ld KB more\n", most, grown);
  if (LOCKSTEP_FEW_PROCESSES == 0) {
    EXPECT_LT(grown, 20'000);
  }
  meet_and_leave(chief, other);
}

TEST_F(Strangers, AreDroppedAtTheOtherWorkersPortsToo) {
  MemberProcess chief(0, addresses, {"heartbeat=100"});
  MemberProcess other(1, addresses, {"heartbeat=100"}, with_files(256));
  ASSERT_NE(chief.await("joined"), "");
  ASSERT_NE(other.await("joined"), "");
  Flood flood(addresses[1], std::min(most, 3000));
  std::this_thread::sleep_for(300ms);
  flood.reset();
  EXPECT_LT(open_files(other.pid()), 100);
  meet_and_leave(chief, other);
}

}  // namespace
}  // namespace lockstep::coordination
