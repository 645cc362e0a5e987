// Members as threads of one process: everything that does not need separate processes.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/coordination/coordinator.h"
#include "tests/support/certificates.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/member_processes.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

namespace lockstep::coordination {
namespace {

using namespace std::chrono_literals;
using Job = std::vector<std::unique_ptr<Coordinator>>;

JoinOptions options_of(const std::vector<std::string>& addresses, int self) {
  JoinOptions options{.self = self,
                      .cluster = "two\nlines",
                      .join_timeout = 20s,
                      .waiting_log_interval = 100ms,
                      .heartbeat_interval = 100ms,
                      .dead_after = 3s,
                      .leave_timeout = 10s};
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    options.members.push_back(
        {.task_type = "worker", .task_index = static_cast<int>(i), .address = parse_address(addresses[i])});
  }
  return options;
}

void on_all(const Job& job, const std::function<void(Coordinator&)>& action) {
  std::vector<std::thread> threads;
  for (const auto& member : job) threads.emplace_back([&, m = member.get()] { action(*m); });
  for (std::thread& thread : threads) thread.join();
}

Job join_all(int members, const std::function<void(JoinOptions&)>& change = {}) {
  const auto addresses = free_addresses(members);
  Job job(static_cast<std::size_t>(members));
  std::vector<std::thread> threads;
  for (int i = 0; i < members; ++i) {
    threads.emplace_back([&, i] {
      JoinOptions options = options_of(addresses, i);
      if (change) change(options);
      job[static_cast<std::size_t>(i)] = Coordinator::join(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return job;
}

void leave_all(Job& job) {
  on_all(job, [](Coordinator& member) { member.leave(Deadline::after(10s)); });
  job.clear();
}

class Coordination : public ::testing::Test {
  Watchdog watchdog_{60s, "a coordination test"};
  LogSilence silence_;
};

TEST_F(Coordination, AGroupOfOneIsAnOrdinaryGroup) {
  Job job = join_all(1);
  job[0]->set("key", "value");
  EXPECT_EQ(job[0]->get("key", Deadline::after(1s)), "value");
  job[0]->barrier("alone", Deadline::after(1s));
  leave_all(job);
}

TEST_F(Coordination, WhatOneMemberSetsAllOthersGet) {
  Job job = join_all(3);
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    job[2]->set("address", std::string("\0\xff bytes", 8));
  });
  on_all(job, [](Coordinator& member) {
    EXPECT_EQ(member.get("address", Deadline::after(5s)), std::string("\0\xff bytes", 8));
  });
  late.join();
  EXPECT_EQ(job[0]->generation(), job[2]->generation());
  leave_all(job);
}

TEST_F(Coordination, AKeyThatNobodySetsIsATimeout) {
  Job job = join_all(2);
  expect_error([&] { job[1]->get("nothing", Deadline::after(50ms)); }, Code::DeadlineExceeded, errors::kTimeout,
               {"\"nothing\""});
  expect_error([&] { job[1]->set("big", std::string(2 << 20, 'x')); }, Code::InvalidArgument, errors::kBadOption,
               {"at most"});
  leave_all(job);
}

TEST_F(Coordination, BarriersOfOneNameCanBeRepeated) {
  Job job = join_all(3);
  std::atomic<int> arrived{0};
  on_all(job, [&](Coordinator& member) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      member.barrier("step", Deadline::after(10s));
      EXPECT_GE(arrived.load(), 3 * round);
    }
  });
  leave_all(job);
}

TEST_F(Coordination, ABarrierNamesWhoIsMissingAndCanBeTriedAgain) {
  Job job = join_all(3);
  job[2]->set_place("call 812 of run, forward");
  std::this_thread::sleep_for(250ms);
  std::thread one([&] { job[1]->barrier("save", Deadline::after(10s)); });
  expect_error([&] { job[0]->barrier("save", Deadline::after(100ms)); }, Code::DeadlineExceeded, errors::kTimeout,
               {"barrier \"save\"", "missing: worker 2", "last seen in call 812 of run, forward"});
  std::thread zero([&] { job[0]->barrier("save", Deadline::after(10s)); });
  job[2]->barrier("save", Deadline::after(10s));
  one.join();
  zero.join();
  leave_all(job);
}

TEST_F(Coordination, EqualModelsPassAndDifferentOnesAreShownToAll) {
  Job job = join_all(3);
  on_all(job, [](Coordinator& member) { member.require_same("model", {"a", "b"}, Deadline::after(10s)); });
  on_all(job, [&](Coordinator& member) {
    const std::string shape = &member == job[1].get() ? "[16]" : "[8]";
    expect_error(
        [&] {
          member.require_same("model", {"conv.weight [8, 1]", "conv.bias " + shape}, Deadline::after(10s));
        },
        Code::FailedPrecondition, errors::kDifferentPrograms,
        {"model of worker 1 differs from that of worker 0 and worker 2",
         "worker 0 has \"conv.bias [8]\", worker 1 has \"conv.bias [16]\""});
  });
  on_all(job, [](Coordinator& member) { member.require_same("model", {"a", "b"}, Deadline::after(10s)); });
  leave_all(job);
}

TEST_F(Coordination, WhoeverLeavesFailsTheBarriersThatNeedItAndNothingElse) {
  Job job = join_all(3);
  std::thread waiting([&] {
    expect_error([&] { job[1]->barrier("end", Deadline::after(20s)); }, Code::Unavailable, errors::kPeerLost,
                 {"worker 2", "has left the job"});
  });
  std::this_thread::sleep_for(50ms);
  job[2]->leave(Deadline::after(5s));
  waiting.join();
  expect_error([&] { job[0]->barrier("end", Deadline::after(20s)); }, Code::Unavailable, errors::kPeerLost,
               {"worker 2"});
  expect_error([&] { job[2]->barrier("end", Deadline::after(20s)); }, Code::FailedPrecondition, errors::kWrongContext,
               {"has left"});
  job[0]->set("still", "works");
  EXPECT_EQ(job[1]->get("still", Deadline::after(5s)), "works");
  EXPECT_EQ(job[1]->states()[2].presence, Presence::Left);
  EXPECT_FALSE(job[0]->failure().has_value());
  leave_all(job);
}

TEST_F(Coordination, WhoLeavesBeforeTheChiefWaitsForItsNextJob) {
  const auto addresses = free_addresses(2);
  const auto take_part = [&](int self, std::chrono::milliseconds stay) {
    for (int job = 0; job < 3; ++job) {
      const auto member = Coordinator::join(options_of(addresses, self));
      member->barrier("all here", Deadline::after(10s));
      std::this_thread::sleep_for(stay);
    }
  };
  std::thread chief(take_part, 0, 300ms);
  take_part(1, 0ms);
  chief.join();
}

TEST_F(Coordination, TheFirstFailureIsToldToAllAndEndsWhatTheyWaitFor) {
  Job job = join_all(3);
  std::atomic<int> told{0};
  for (const auto& member : job) member->on_failure([&](const Error&) { ++told; });
  std::thread waiting([&] {
    expect_error([&] { job[1]->get("never", Deadline::never()); }, Code::Unavailable, errors::kPeerFailed,
                 {"out of paint"});
  });
  job[2]->set_place("call 7 of run, user code");
  job[2]->report_failure(Unavailable(errors::kPeerFailed, {.what = "out of paint", .help = "buy some"}));
  waiting.join();
  job[0]->report_failure(Unavailable(errors::kPeerFailed, {.what = "a consequence", .help = "wait"}));
  for (const auto& member : job) {
    const auto failure = member->wait_for_failure(Deadline::after(5s));
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->text().what, "out of paint");
    const std::string& where = failure->text().where;
    EXPECT_NE(where.find("reported by worker 2 ("), std::string::npos) << where;
    EXPECT_NE(where.find("call 7 of run, user code"), std::string::npos) << where;
  }
  const auto begin = std::chrono::steady_clock::now();
  job.clear();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  EXPECT_EQ(told.load(), 3);
}

TEST_F(Coordination, AnExceptionThatUnwindsAMemberEndsTheJob) {
  Job job = join_all(2);
  EXPECT_THROW(
      {
        const auto dying = std::move(job[1]);
        throw std::runtime_error("user code");
      },
      std::runtime_error);
  const auto failure = job[0]->wait_for_failure(Deadline::after(5s));
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->number(), errors::kPeerFailed);
}

TEST_F(Coordination, CertificatesFromFilesEncryptTheSessions) {
  const CertificateAuthority authority;
  if (!authority.made()) GTEST_SKIP() << "no openssl program";
  std::vector<WorkerEntry> members;
  Job job = join_all(2, [&](JoinOptions& options) {
    if (options.self == 0) members = options.members;
    options.tls = authority.sign(str("host", options.self));
  });
  on_all(job, [](Coordinator& member) { member.barrier("encrypted", Deadline::after(10s)); });
  JoinOptions plain{.members = members, .self = 1, .join_timeout = 20s};
  plain.members[1].address = parse_address(free_addresses(1)[0]);
  testing::internal::CaptureStderr();
  expect_error([&] { Coordinator::join(plain); }, Code::FailedPrecondition, errors::kJobKey,
               {"the chief (" + to_string(plain.members[0].address) + ") uses TLS and worker 1 does not"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "gRPC's own messages";
  leave_all(job);
}

TEST_F(Coordination, CertificatesOfAnotherAuthorityAreNamedOnBothSides) {
  const CertificateAuthority authority, other;
  if (!authority.made()) GTEST_SKIP() << "no openssl program";
  const auto addresses = free_addresses(2);
  std::thread chief([&] {
    JoinOptions options = options_of(addresses, 0);
    options.tls = authority.sign("host0");
    options.join_timeout = 2s;
    expect_error([&] { Coordinator::join(options); }, Code::DeadlineExceeded, errors::kPeerMissing,
                 {"missing: worker 1 (", "all certificates are of one authority"});
  });
  JoinOptions options = options_of(addresses, 1);
  const TlsFiles right = authority.sign("host1"), wrong = other.sign("host1");
  const auto expect_refused = [&](const TlsFiles& files, const std::string& part) {
    options.tls = files;
    expect_error([&] { Coordinator::join(options); }, Code::FailedPrecondition, errors::kJobKey, {part});
  };
  expect_refused(wrong, "worker 1 and the chief (" + addresses[0] + ") do not accept each other's certificates");
  expect_refused({right.authority, wrong.certificate, wrong.private_key}, "is not valid for the authority");
  expect_refused({right.authority, right.certificate, wrong.private_key}, "does not belong to the certificate");
  expect_refused({right.authority, right.certificate, right.certificate}, "must be a private key in PEM format");
  expect_refused({right.private_key, right.certificate, right.private_key}, "holds no certificate in PEM format");
  expect_refused({right.authority, wrong.certificate, wrong.private_key}, "unable to get local issuer certificate");
  expect_refused({right.authority, right.certificate, {}}, "the file of the private key is missing");
  expect_refused({right.authority, "/no/such/file", right.private_key}, "/no/such/file cannot be read");
  expect_refused({right.authority, right.private_key, right.private_key}, "is not a certificate in PEM format");
  chief.join();
}

TEST_F(Coordination, ACertificateForAnotherHostIsNamed) {
  const CertificateAuthority authority;
  if (!authority.made()) GTEST_SKIP() << "no openssl program";
  JoinOptions options = options_of(free_addresses(2), 0);
  options.tls = authority.sign("host0", "DNS:elsewhere");
  expect_error([&] { Coordinator::join(options); }, Code::FailedPrecondition, errors::kJobKey,
               {"do not accept each other's certificates", "127.0.0.1"});
}

TEST_F(Coordination, AChiefWithoutTlsIsNamed) {
  const CertificateAuthority authority;
  if (!authority.made()) GTEST_SKIP() << "no openssl program";
  const auto addresses = free_addresses(2);
  JoinOptions with_tls = options_of(addresses, 1);
  with_tls.tls = authority.sign("host1");  // signing may take longer than the chief waits
  std::thread chief([&] {
    JoinOptions options = options_of(addresses, 0);
    options.join_timeout = 2s;
    expect_error([&] { Coordinator::join(options); }, Code::DeadlineExceeded, errors::kPeerMissing, {"worker 1 ("});
  });
  expect_error([&] { Coordinator::join(with_tls); }, Code::FailedPrecondition, errors::kJobKey,
               {"do not accept each other's certificates"});
  chief.join();
}

TEST_F(Coordination, TwentyJobsInARowHaveTwentyGenerations) {
  const auto addresses = free_addresses(2);
  std::set<std::uint64_t> generations;
  for (int i = 0; i < 20; ++i) {
    std::thread other([&] { Coordinator::join(options_of(addresses, 1))->barrier("here", Deadline::after(10s)); });
    const auto chief = Coordinator::join(options_of(addresses, 0));
    generations.insert(chief->generation());
    chief->barrier("here", Deadline::after(10s));
    chief->leave(Deadline::after(10s));
    other.join();
  }
  EXPECT_EQ(generations.size(), 20u);
}

// The chief ends as soon as it has answered the last one, whose thread may not have read the answer by then.
TEST_F(Coordination, MembersThatLeaveAtOneMomentNoteNoFailure) {
  for (int round = 0; round < 10; ++round) {
    Job job = join_all(8);
    std::atomic<int> failures{0};
    for (const auto& member : job) member->on_failure([&](const Error&) { ++failures; });
    on_all(job, [](Coordinator& member) { member.barrier("end", Deadline::after(10s)); });
    on_all(job, [](Coordinator& member) { member.leave(Deadline::after(10s)); });
    for (const auto& member : job) EXPECT_FALSE(member->failure()) << member->failure()->what();
    job.clear();
    EXPECT_EQ(failures, 0);
  }
}

TEST_F(Coordination, AProcessWhoseJobHasFailedWaitsForTheNextOne) {
  const auto addresses = free_addresses(2);
  const auto join = [&](int self) { return Coordinator::join(options_of(addresses, self)); };
  std::thread other([&] {
    auto job = join(1);
    job->barrier("here", Deadline::after(10s));
    job->report_failure(Unavailable(errors::kPeerFailed, {.what = "out of paint", .help = "buy some"}));
    EXPECT_TRUE(job->wait_for_failure(Deadline::after(5s)));
    job.reset();
    join(1)->barrier("again", Deadline::after(10s));
  });
  auto job = join(0);
  job->barrier("here", Deadline::after(10s));
  EXPECT_TRUE(job->wait_for_failure(Deadline::after(5s)));
  std::this_thread::sleep_for(300ms);  // the other one tries to join a job that has failed
  job.reset();
  job = join(0);
  job->barrier("again", Deadline::after(10s));
  job.reset();
  other.join();
}

}  // namespace
}  // namespace lockstep::coordination
