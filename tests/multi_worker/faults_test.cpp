// Faults as seen by users of MultiWorkerMirroredStrategy: which worker is named on every worker, how fast, with which
// exit code, and the remaining state. `--gtest_repeat=5` gives medians of five.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/certificates.h"
#include "tests/support/processes.h"
#include "tests/support/three_hosts.h"
#include "tests/support/two_hosts.h"

namespace lockstep {
namespace {

constexpr int kPeerLost = 3;  // exit codes of the program
constexpr int kError = 1;
constexpr seconds kEnough(40);     // for anything that must happen
constexpr double kQuietStart = 1;  // seconds to load LibTorch, at most, on an idle machine

// ---- times to notice

struct Row {
  double limit = 0;
  std::vector<double> times = {};
};

std::map<std::string, Row>& table() {
  static auto& rows = *new std::map<std::string, Row>;
  return rows;
}

class PrintedTable : public testing::Environment {
 public:
  void TearDown() override {
    std::printf("%-56s %10s %10s\n", "fault", "median", "limit");
    for (auto& [fault, row] : table()) {
      std::sort(row.times.begin(), row.times.end());
      std::printf("%-56s %8.3f s %8.1f s\n", fault.c_str(), row.times[row.times.size() / 2], row.limit);
    }
  }
};
const auto* const printed = testing::AddGlobalTestEnvironment(new PrintedTable);

/// Records the time for the table. A test allows for ten times the limit, as the machine may be busy.
void noticed(const std::string& fault, double limit, double taken) {
  table()[fault].limit = limit;
  table()[fault].times.push_back(taken);
  EXPECT_LE(taken, 10 * limit) << fault;
}

// ---- the workers' messages

double time_after(const std::string& mark, const std::string& output) {
  const auto at = output.find(mark);
  if (at == output.npos) {
    ADD_FAILURE() << "no '" << mark << "' in:\n" << output;
    return 0;
  }
  return std::strtod(output.c_str() + at + mark.size(), nullptr);
}

/// The first block of an error.
std::string error_in(const std::string& output) {
  const auto begin = output.find("error[L");
  if (begin == output.npos) return {};
  auto end = output.find('\n', begin);
  while (end != output.npos && output.compare(end + 1, 2, "  ") == 0) end = output.find('\n', end + 1);
  return output.substr(begin, end - begin);
}

Strings program(const std::string& scenario, Strings settings = {}) {
  settings.insert(settings.begin(), {LOCKSTEP_FAULT_PROGRAM, scenario});
  return settings;
}

/// By step, for a training without faults: one process with as many replicas has the same bits.
const std::string& undisturbed() {
  static const std::string output = [] {
    Process process(program("train", {"replicas=6", "steps=400"}), {});
    EXPECT_EQ(process.wait(kEnough), 0) << process.output();
    return process.output();
  }();
  return output;
}

/// Checks that a worker has the weights of the last whole step.
void expect_whole_step(const std::string& output) {
  const std::string mark = "\nkept ";
  const auto at = output.find(mark);
  ASSERT_NE(at, output.npos) << output;
  const auto begin = at + mark.size();
  const std::string kept = output.substr(begin, output.find('\n', begin) - begin);
  EXPECT_TRUE(contains(undisturbed(), "step " + kept + "\n")) << kept;
}

struct Expected {
  int code = kPeerLost;
  Strings parts = {};  ///< parts of the error
  bool has_weights = true;
};

/// Checks that a worker ends with this error; returns when it noticed.
double expect_error(Process& worker, const Expected& expected) {
  const int code = worker.wait(kEnough);
  const std::string output = worker.output();
  EXPECT_EQ(code, expected.code) << output;
  for (const auto& part : expected.parts) EXPECT_TRUE(contains(error_in(output), part)) << part << "\n" << output;
  EXPECT_TRUE(contains(error_in(output), "help:")) << output;
  if (expected.has_weights) expect_whole_step(output);
  const double at = time_after(expected.has_weights ? "failed at " : "error at ", output);
  EXPECT_LT(worker.ended() - at, 10) << "it noticed, but did not end:\n" << output;
  return at;
}

/// Checks that all of them end with the same error, as far as the cause is concerned; returns the last to notice.
double expect_errors(Job& job, const std::vector<int>& survivors, const Expected& expected) {
  double last = 0;
  for (const int k : survivors) last = std::max(last, expect_error(job[k], expected));
  for (const int k : survivors) EXPECT_EQ(error_in(job[k].output()), error_in(job[survivors[0]].output()));
  return last;
}

class Faults : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("LOCKSTEP_FAILURE_DIR", logs_.path().c_str(), 1);
    undisturbed();
  }
  const TemporaryFolder logs_;
};

const Strings kForLong{"steps=100000"};

// ---- workers that end or freeze

void kill_while_training(int victim, const std::string& fault, int number) {
  Job job(3, program("train", kForLong));
  for (int k = 0; k < 3; ++k) ASSERT_TRUE(job[k].prints("step 5 ")) << job[k].output();
  const double since = now();
  job[victim].signal(SIGKILL);
  std::vector<int> survivors{0, 1, 2};
  std::erase(survivors, victim);
  const Strings parts{str("error[L", number, "]: worker ", victim, " (", job.addresses[victim], ")"),
                      "ended without leaving", str("pid ", job[victim].pid())};
  double last = 0;
  for (const int k : survivors) last = std::max(last, expect_error(job[k], {.parts = parts}));
  noticed(fault, 0.1, last - since);
}

TEST_F(Faults, AKilledWorkerIsNamed) { kill_while_training(1, " 1 worker killed", 104); }
TEST_F(Faults, AKilledChiefIsNamed) { kill_while_training(0, "18 chief killed", 117); }

TEST_F(Faults, AFrozenWorkerIsNamed) {
  Job job(3, program("train", kForLong));
  ASSERT_TRUE(job[2].prints("step 5 ")) << job[2].output();
  const double since = now();
  job[2].signal(SIGSTOP);
  const std::string who = "worker 2 (" + job.addresses[2] + ")";
  noticed(
      " 2 worker frozen", 3,
      expect_errors(job, {0, 1}, {.parts = {"error[L104]: " + who, "stopped answering", "last heartbeat"}}) - since);
  job[2].signal(SIGCONT);  // it learns that the others have continued without it
  EXPECT_EQ(job[2].wait(kEnough), kPeerLost) << job[2].output();
}

TEST_F(Faults, AShortPauseIsAWarning) {
  Job job(3, program("train", {"steps=60"}));
  ASSERT_TRUE(job[1].prints("step 5 ")) << job[1].output();
  job[1].signal(SIGSTOP);
  ::poll(nullptr, 0, 1500);
  job[1].signal(SIGCONT);
  for (int k = 0; k < 3; ++k) EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
  EXPECT_TRUE(contains(job[0].output(), "worker 1 (" + job.addresses[1] + ") did not answer for")) << job[0].output();
}

TEST_F(Faults, AStuckWorkerIsNamedInAWarningAndThenInAnError) {
  Job job(3, program("stuck", {"timeout=11"}));
  ASSERT_TRUE(job[1].prints("fault at")) << job[1].output();
  const std::string who = "worker 1 (" + job.addresses[1] + ")";
  const std::string warning = str(" s; not there yet: ", who, " was last seen in call 3 of run");
  EXPECT_TRUE(job[0].prints(warning)) << job[0].output();
  EXPECT_TRUE(job[2].prints(warning)) << job[2].output();
  noticed(" 3 worker stuck in user code (warning)", 10, now() - time_after("fault at ", job[1].output()));
  EXPECT_TRUE(contains(job[0].output(), "also waiting: worker 2")) << job[0].output();
  expect_errors(job, {0, 2},
                {.code = kError, .parts = {"error[L101]: worker 1 did not reach a collective in time", who}});
  job[1].end();  // it would sleep forever
}

TEST_F(Faults, AWorkerThatMakesFewerStepsIsNamed) {
  for (const int early : {1, 0}) {
    Job job(3, program("fewer_steps", {str("faulty=", early)}));
    EXPECT_EQ(job[early].wait(kEnough), 0) << job[early].output();
    const double since = time_after("leaves at ", job[early].output());
    std::vector<int> others{0, 1, 2};
    std::erase(others, early);
    double last = 0;
    for (const int k : others)
      last = std::max(last, expect_error(job[k], {.parts = {str("worker ", early), " has left the job"}}));
    noticed(early == 0 ? "   chief leaves early" : "   worker leaves early", 1, last - since);
  }
}

// ---- the network

/// Chief and worker 1 on one host, worker 2 on the other. Each saves after every step into its host's folder.
TEST_F(Faults, ACutNetworkIsNoticedOnBothSidesAndTheSideWithoutTheChiefWritesNothing) {
  const TwoHosts hosts;
  if (!hosts.made()) GTEST_SKIP() << "needs root and network namespaces";
  const Strings key{"LOCKSTEP_JOB_KEY=" + std::string(64, '7')};
  const TemporaryFolder with_chief, cut_off;
  Job job({"10.77.0.1:2222", "10.77.0.1:2223", "10.77.0.2:2222"});
  for (int k = 0; k < 3; ++k) {
    Strings words = TwoHosts::on(k == 2 ? 'b' : 'a');
    const Strings command = program("train", {kForLong[0], "each=" + ((k == 2 ? cut_off : with_chief) / "model")});
    words.insert(words.end(), command.begin(), command.end());
    job.start(k, words, key);
  }
  for (int k = 0; k < 3; ++k) ASSERT_TRUE(job[k].prints("step 5 ")) << job[k].output();
  ASSERT_TRUE(hosts.pull_out());
  const double since = now();
  double last = 0;
  for (int k = 0; k < 3; ++k) {
    const int other = k == 2 ? 0 : 2;
    last = std::max(last, expect_error(job[k], {.parts = {str("worker ", other, " (", job.addresses[other], ")")}}));
  }
  noticed(" 4 network cut", 3, last - since);
  EXPECT_TRUE(std::filesystem::is_empty(cut_off.path()));
  // A file that was being written when the others left is gone, and the previous one is whole.
  EXPECT_TRUE(std::filesystem::exists(with_chief / "model"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(with_chief.path()), {}), 1);
}

/// One worker on each of three hosts, in the fifth step.
class OnThreeHosts : public Faults {
 protected:
  void SetUp() override {
    Faults::SetUp();
    if (!hosts.made()) GTEST_SKIP() << "needs root and network namespaces";
  }
  void start(const Strings& settings) {
    for (int k = 0; k < 3; ++k) {
      Strings words = ThreeHosts::on(k);
      const Strings command = program("train", settings);
      words.insert(words.end(), command.begin(), command.end());
      job.start(k, words, {"LOCKSTEP_JOB_KEY=" + std::string(64, '7')});
    }
    for (int k = 0; k < 3; ++k) ASSERT_TRUE(job[k].prints("step 5 ")) << job[k].output();
  }
  /// Expects a cut between workers 1 and 2.
  void expect_cut(const std::string& fault) {
    const double since = now();
    const Strings parts{str("error[L104]: worker 1 (", job.addresses[1], ") and worker 2 (", job.addresses[2],
                            ") cannot reach each other"),
                        "both still reach the chief"};
    noticed(fault, 3, expect_errors(job, {0, 1, 2}, {.parts = parts}) - since);
  }

  /// Tests pauses that follow each other so closely that TCP may not send in between.
  void expect_no_harm(const std::function<bool()>& cut, const std::function<bool()>& mend) {
    start({"steps=400"});
    for (const double pause : {0.5, 1.5, 1.5}) {
      const double begin = now();
      ASSERT_TRUE(cut());
      const double command = now() - begin;  // mending takes about as long
      ::poll(nullptr, 0, static_cast<int>((pause - 2 * command) * 1000));
      ASSERT_TRUE(mend());
      ::poll(nullptr, 0, 300);
    }
    for (int k = 0; k < 3; ++k) EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
    for (const auto& line : {"step 399 ", "step 400 "}) {
      const auto at = undisturbed().find(line);
      const std::string expected = undisturbed().substr(at, undisturbed().find('\n', at) - at);
      for (int k = 0; k < 3; ++k)
        EXPECT_TRUE(contains(job[k].output(), expected)) << expected << "\n" << job[k].output();
    }
  }

  const ThreeHosts hosts;
  Job job{Strings{"10.77.1.1:2222", "10.77.1.2:2222", "10.77.1.3:2222"}};
};

TEST_F(OnThreeHosts, WorkersThatCannotReachEachOtherAreNamedAsAPair) {
  start(kForLong);
  ASSERT_TRUE(hosts.cut(1, 2) && hosts.cut(2, 1));
  expect_cut(" 4b link between two workers cut");
}

TEST_F(OnThreeHosts, OneWayIsEnough) {
  start(kForLong);
  ASSERT_TRUE(hosts.cut(2, 1));
  expect_cut(" 4b link between two workers cut one way");
}

TEST_F(OnThreeHosts, PausesBetweenTwoWorkersDoNoHarm) {
  expect_no_harm([&] { return hosts.cut(1, 2) && hosts.cut(2, 1); },
                 [&] { return hosts.mend(1, 2) && hosts.mend(2, 1); });
}

TEST_F(OnThreeHosts, PausesOfTheLinkDoNoHarm) {
  expect_no_harm([&] { return hosts.unplug(2); }, [&] { return hosts.plug_in(2); });
}

// ---- the start

TEST_F(Faults, APortInUseIsNamed) {
  Job job(free_addresses(2));
  const std::string& address = job.addresses[1];
  const int port = std::stoi(address.substr(address.find(':') + 1));
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in taken{};
  taken.sin_family = AF_INET;
  taken.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  taken.sin_port = htons(static_cast<std::uint16_t>(port));
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&taken), sizeof taken), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  auto& worker = job.start(1, program("train"));
  const double at = expect_error(
      worker, {.parts = {str("error[L106]: port ", port, " of worker 1 (", address, ") is in use"), str(::getpid())},
               .has_weights = false});
  noticed(" 8 port in use", 1, at - time_after("begins at ", worker.output()));
  ::close(socket);
}

TEST_F(Faults, ADataPortInUseIsToldToAll) {
  for (const std::string faulty : {"1", "0"}) {
    Job job(free_addresses(3));
    const std::string& address = job.addresses[std::stoul(faulty)];
    const Strings settings{"faulty=" + faulty, "data_port=" + address.substr(address.find(':') + 1)};
    for (int k = 0; k < 3; ++k) job.start(k, program("train", settings));
    const Strings parts{"error[L106]: the data port " + address + " is in use", "reported by worker " + faulty,
                        "this process itself, "};
    job.wait(kEnough);  // for all at once: each of them must end soon after it noticed
    const double last = expect_errors(job, {0, 1, 2}, {.code = kError, .parts = parts, .has_weights = false});
    double begin = 0, start = 0;
    for (int k = 0; k < 3; ++k) {
      begin = std::max(begin, time_after("begins at ", job[k].output()));
      start = std::max(start, time_after("begins at ", job[k].output()) - job[k].started());
    }
    // Three processes meet when they are busiest: on a machine with other work as slowly as they start.
    noticed(" 8 data port in use", 1, (last - begin) / std::max(1.0, start / kQuietStart));
  }
}

TEST_F(Faults, AMissingWorkerIsNamedWhileOthersWait) {
  Job job(free_addresses(3));
  job.start(0, program("train", {"join=6"}));
  job.start(2, program("train", {"join=6"}));
  const std::string who = "worker 1 (" + job.addresses[1] + ")";
  EXPECT_TRUE(job[0].prints("waiting for " + who + ": connection refused", kEnough)) << job[0].output();
  noticed(" 9 worker missing (line)", 5, now() - time_after("begins at ", job[0].output()));
  EXPECT_TRUE(contains(job[0].output(), "here: worker 0 and worker 2")) << job[0].output();
  for (int k = 0; k < 2; ++k)
    expect_error(job[k], {.code = kError, .parts = {"error[L105]: the job did not start", who}, .has_weights = false});
}

TEST_F(Faults, ASecondProcessWithATaskIndexIsToldWhoHasIt) {
  Job job(2, program("train", {"steps=300"}));
  ASSERT_TRUE(job[1].prints("step 5 ")) << job[1].output();
  auto& second = job.start(1, program("train"));
  const double at = expect_error(
      second,
      {.code = kError,
       .parts = {"error[L107]: worker 1 (" + job.addresses[1] + ") is already in the job", str("pid ", job[1].pid())},
       .has_weights = false});
  noticed("10 same task index", 1, at - time_after("begins at ", second.output()));
  for (int k = 0; k < 2; ++k) EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
  EXPECT_TRUE(contains(job[1].output(), str("pid ", second.pid(), " on host"))) << job[1].output();
}

TEST_F(Faults, DifferentClustersAreCompared) {
  Job job(free_addresses(3));
  Strings other = job.addresses;
  other[2] = "127.0.0.1:9";
  job.start(0, program("train"));
  Job wrong(other);
  auto& worker = wrong.start(1, program("train"));
  const Expected expected{.code = kError,
                          .parts = {"error[L108]", "worker 1 (" + job.addresses[1] + ")", other[2], job.addresses[2]},
                          .has_weights = false};
  const double at = expect_error(worker, expected);
  expect_error(job[0], expected);
  noticed("11 different TF_CONFIG", 1,
          at - std::max(time_after("begins at ", worker.output()), time_after("begins at ", job[0].output())));
}

TEST_F(Faults, DifferentProgramsAreCompared) {
  const std::map<std::string, Strings> scenarios{
      {"other_model", {"model of worker 1 differs", "Float[16, 8]", "Float[17, 8]"}},
      {"other_optimizer", {"optimizer 0 of worker 1 differs", "lr: 0.01", "lr: 0.02"}},
      {"other_momentum", {"optimizer 0 of worker 1 differs", "momentum: 0.9", "momentum: 0.5"}},
      {"other_groups", {"optimizer 1 of worker 1 differs", "0.weight: in group 1", "0.weight: in group 0"}},
      {"other_way", {"error[L109]: strategy of worker 1 differs", "communication.implementation: RING"}},
      {"other_batches", {"error[L109]: dataset of worker 1 differs", "batch size: 12", "batch size: 6"}},
      {"other_seed", {"error[L109]: strategy of worker 1 differs", "seed: 7", "seed: 8"}}};
  for (const auto& [scenario, parts] : scenarios) {
    Job job(3, program(scenario));
    double first = 0;
    for (int k = 0; k < 3; ++k) {
      expect_error(job[k], {.code = kError, .parts = parts, .has_weights = false});
      first = std::max(first, time_after("begins at ", job[k].output()));
    }
    noticed("12 " + scenario, 1, time_after("error at ", job[0].output()) - first);
  }
}

TEST_F(Faults, SettingsThatOneWorkerChangesAreNoticedAtTheNextStep) {
  const std::map<std::string, Strings> scenarios{
      {"other_rate", {"error[L109]: optimizer 0 of worker 1 differs", "lr: 0.01", "lr: 0.5", "strategy.broadcast"}},
      {"other_options", {"error[L109]: optimizer 0 of worker 1 differs", "weight_decay: 0.1"}},
      {"other_clip", {"error[L109]: optimizer 0 of worker 1 differs", "set_clip_global_norm: none"}},
      {"frozen", {"error[L110]: the step of worker 1 differs", "0.weight: frozen", "0.weight: trained"}}};
  for (const auto& [scenario, parts] : scenarios) {
    Job job(3, program(scenario));
    const double last = expect_errors(job, {0, 1, 2}, {.code = kError, .parts = parts});
    noticed("12 " + scenario, 1, last - time_after("fault at ", job[1].output()));
  }
}

TEST_F(Faults, WorkersThatTrainInDifferentWaysAreNoticed) {
  struct Scenario {
    const char* name;
    Strings parts;
    bool has_weights = false;  ///< those of the last step, on all workers
  };
  const Scenario scenarios[] = {
      {"other_init", {"error[L109]: the model of worker 1 differs", "digest of 0.weight", "strategy.broadcast"}},
      {"other_weights", {"error[L109]: the model of worker 1 differs", "digest of 0.weight", "strategy.broadcast"}},
      {"other_limit", {"error[L110]: clip_global_norm of worker 1 differs", "limit: 0.25", "limit: 0.5"}},
      {"other_batch", {"error[L110]: the step of worker 1 differs", "batch given to run: number 3 of pass 0"}, true},
      {"skipped_step", {"error[L110]: the step of worker 1 differs", "updates made before: 3"}}};
  for (const auto& [scenario, parts, has_weights] : scenarios) {
    Job job(3, program(scenario));
    expect_errors(job, {0, 1, 2}, {.code = kError, .parts = parts, .has_weights = has_weights});
  }
}

TEST_F(Faults, ADifferentKindOfCpuIsAWarning) {
  const TemporaryFolder folder;
  std::string others = file_content("/proc/cpuinfo");
  const auto at = others.find(':', std::min(others.find("model name"), others.find("CPU part")));
  ASSERT_NE(at, others.npos);
  others.insert(at + 2, "9");
  const std::string mount = str("mount --bind ", folder.file("cpuinfo", others), " /proc/cpuinfo");
  if (std::system(str("unshare -m ", mount, " 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "needs root";
  Strings on_another{"unshare", "-m", "sh", "-c", mount + " && exec \"$0\" \"$@\""};
  const Strings words = program("train");
  on_another.insert(on_another.end(), words.begin(), words.end());
  Job job(free_addresses(2));
  job.start(0, words);
  job.start(1, on_another);
  for (int k = 0; k < 2; ++k) EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
  EXPECT_TRUE(contains(job[0].output(), "worker 1 runs on another kind of machine: worker 0 has \""))
      << job[0].output();
}

TEST_F(Faults, WrongCertificatesAreNamedOnBothSides) {
  const CertificateAuthority authority, other;
  if (!authority.made()) GTEST_SKIP() << "no openssl program";
  const auto as_setting = [](const TlsFiles& files) {
    return str("tls=", files.authority, ",", files.certificate, ",", files.private_key);
  };
  const auto as_variables = [](const TlsFiles& files) {
    return Strings{"LOCKSTEP_TLS_AUTHORITY=" + files.authority, "LOCKSTEP_TLS_CERTIFICATE=" + files.certificate,
                   "LOCKSTEP_TLS_KEY=" + files.private_key};
  };
  Job job(free_addresses(2));
  job.start(0, program("train", {as_setting(authority.sign("host0"))}));
  job.start(1, program("train"), as_variables(authority.sign("host1")));
  for (int k = 0; k < 2; ++k) EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();

  Job wrong(free_addresses(2));
  wrong.start(0, program("train", {as_setting(authority.sign("host0")), "join=4"}));
  wrong.start(1, program("train"), as_variables(other.sign("host1")));
  const double at = expect_error(
      wrong[1], {.code = kError,
                 .parts = {"error[L111]: worker 1 and the chief (" + wrong.addresses[0] + ") do not accept"},
                 .has_weights = false});
  noticed("33 certificate of another authority", 1,
          at - std::max(time_after("begins at ", wrong[0].output()), time_after("begins at ", wrong[1].output())));
  expect_error(wrong[0], {.code = kError,
                          .parts = {"error[L105]", "worker 1 (" + wrong.addresses[1] + ")",
                                    "all certificates are of one authority"},
                          .has_weights = false});
}

// ---- different collectives

struct Mismatch {
  const char* scenario;
  const char* fault;
  const char* part;
};
void PrintTo(const Mismatch& each, std::ostream* out) { *out << each.scenario; }

class Mismatches : public Faults, public testing::WithParamInterface<Mismatch> {};

TEST_P(Mismatches, AreNamedOnAllWorkersBeforeDataIsUsed) {
  Job job(3, program(GetParam().scenario, {"timeout=30"}));
  const double last = expect_errors(
      job, {0, 1, 2},
      {.code = kError,
       .parts = {"error[L110]: worker 1 and workers 0 and 2 called", GetParam().part, "fault_program.cpp:"}});
  noticed(GetParam().fault, 0.1, last - time_after("fault at ", job[1].output()));
}

INSTANTIATE_TEST_SUITE_P(All, Mismatches,
                         testing::Values(Mismatch{"sizes", "13 different sizes", "float32 [5]"},
                                         Mismatch{"dtypes", "14 different types", "int32 [4]"},
                                         Mismatch{"order", "15 swapped order", "different names"},
                                         Mismatch{"same_line", "15 another call on the same line", "different names"},
                                         Mismatch{"gather_axis", "13 gather along another axis", "gather along 1"},
                                         Mismatch{"reduce_axis", "13 reduce along another axis", "axis 1"},
                                         Mismatch{"operations", "16 SUM and MEAN", "all-reduce MEAN"},
                                         Mismatch{"kinds", "17 all-reduce and broadcast", "broadcast of"},
                                         Mismatch{"barrier", "17 all-reduce and barrier", "barrier \""},
                                         Mismatch{"save", "17 all-reduce and save", "outcome of save (fault_program"},
                                         Mismatch{"load", "17 all-reduce and load", "outcome of load (fault_program"},
                                         Mismatch{"saves_more", "15 one save more", "outcome of save (fault_program"},
                                         Mismatch{"make", "17 all-reduce and make", "\"make: model\""},
                                         Mismatch{"make_optimizer", "17 all-reduce and make_optimizer",
                                                  "\"make_optimizer: optimizer 1\""},
                                         Mismatch{"constructor", "17 all-reduce and constructor",
                                                  "constructor of another MultiWorkerMirroredStrategy"}),
                         [](const auto& each) { return std::string(each.param.scenario); });

TEST_F(Faults, DigestsFindBuffersThatDifferBetweenWorkers) {
  Job job(3, program("other_buffers"));
  for (int k = 0; k < 3; ++k) {
    EXPECT_NE(job[k].wait(kEnough), 0) << job[k].output();
    const std::string output = job[k].output();
    EXPECT_TRUE(contains(error_in(output), "buffer '3.running_mean' of worker 1 differs from worker 0's")) << output;
    EXPECT_TRUE(contains(output, "step 3 weights")) << output;
    EXPECT_FALSE(contains(output, "step 4 weights")) << output;
  }
}

TEST_F(Faults, ASaveWaitsForTheChiefAsLongAsCollectivesDo) {
  const TemporaryFolder folder;
  Job job(2, program("late_save", {"faulty=0", "join=4", "timeout=0", "each=" + (folder / "model")}));
  for (int k = 0; k < 2; ++k) EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
}

// ---- errors in the program

struct Mistake {
  const char* scenario;
  int code;  ///< exit code of the worker that makes it
  Strings parts;
};
void PrintTo(const Mistake& each, std::ostream* out) { *out << each.scenario; }

class Mistakes : public Faults, public testing::WithParamInterface<Mistake> {};

TEST_P(Mistakes, StopAllWorkersWithOneCause) {
  const std::string scenario = GetParam().scenario;
  const bool catches = scenario != "uncaught";
  Job job(3, program(scenario));
  EXPECT_EQ(job[1].wait(kEnough), GetParam().code) << job[1].output();
  const double since = time_after("fault at ", job[1].output());
  Strings parts = GetParam().parts;
  parts.push_back("worker 1 (" + job.addresses[1] + ")");
  const double last = expect_errors(job, {0, 2}, {.code = catches ? kPeerLost : 1000 + SIGABRT, .parts = parts});
  noticed("36 " + scenario, 1, last - since);
}

INSTANTIATE_TEST_SUITE_P(
    All, Mistakes,
    testing::Values(Mistake{"throw_first", kError, {"error[L113]", "std::runtime_error on replica 2: a bad picture"}},
                    Mistake{"throw_last", kError, {"error[L113]", "std::runtime_error on replica 3: a bad picture"}},
                    Mistake{"throw_in_backward", kError, {"error[L113]", "on replica 3: a bad gradient"}},
                    Mistake{"throw_after_step", kError, {"error[L113]", "on replica 2: a bad metric"}},
                    Mistake{"throw_outside", kError, {"error[L113]", "ended with an exception"}},
                    Mistake{"uncaught", 1000 + SIGABRT, {"error[L104]", "ended without leaving"}},
                    Mistake{"exit", 7, {"error[L104]", "ended without leaving"}},
                    Mistake{"exit_in_run", 7, {"error[L104]", "ended without leaving"}},
                    Mistake{"abort_in_run", 1000 + SIGABRT, {"error[L104]", "ended without leaving"}}),
    [](const auto& each) { return std::string(each.param.scenario); });

TEST_F(Faults, AnErrorOfTheChiefsProgramStopsAll) {
  Job job(3, program("throw_last", {"faulty=0"}));
  EXPECT_EQ(job[0].wait(kEnough), kError) << job[0].output();
  const double last = expect_errors(job, {1, 2}, {.parts = {"error[L113]", "a bad picture", "worker 0 ("}});
  noticed("36 throw_last on the chief", 1, last - time_after("fault at ", job[0].output()));
}

TEST_F(Faults, AWindowThatOneWorkerHasDroppedStopsAll) {
  Job job(3, program("drops_window"));
  for (int k = 0; k < 3; ++k) {  // each sees it by itself, or learns of it before
    EXPECT_GT(job[k].wait(kEnough), 0) << job[k].output();
    for (const char* part : {"a different number of times", "help: "})
      EXPECT_TRUE(contains(error_in(job[k].output()), part)) << job[k].output();
  }
}

TEST_F(Faults, AnOptimizerMayOutliveTheStrategyOfAFailedStep) {
  Job job(3, program("throw_in_backward", {"outlive=1"}));
  EXPECT_EQ(job[1].wait(kEnough), kError) << job[1].output();
  expect_errors(job, {0, 2}, {.parts = {"error[L113]", "a bad gradient"}});
  for (int k = 0; k < 3; ++k) EXPECT_TRUE(contains(job[k].output(), "outlived its strategy")) << job[k].output();
}

TEST_F(Faults, AfterAFailureWeightsCanBeSavedHere) {
  const TemporaryFolder folder;
  Job job(3, program("throw_first", {"save=" + (folder / "worker")}));
  EXPECT_EQ(job[1].wait(kEnough), kError) << job[1].output();
  for (const int k : {0, 2}) {
    EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
    expect_whole_step(job[k].output());
    EXPECT_TRUE(contains(job[k].output(), "saved")) << job[k].output();
  }
  EXPECT_EQ(file_content(folder / "worker0"), file_content(folder / "worker2"));
}

// ---- the launcher

class Launcher : public Faults {
 protected:
  static Strings words(const std::string& scenario, const Strings& settings) {
    Strings all = program(scenario, settings);
    all.insert(all.begin(), {LOCKSTEP_PROGRAM, "run", "-n", "3"});
    return all;
  }
  static std::vector<pid_t> workers_of(Process& launcher) {
    std::vector<pid_t> pids;
    for (int k = 0; k < 3; ++k) {
      EXPECT_TRUE(launcher.prints(str("[worker ", k, "] step 5 "))) << launcher.output();
      const std::string output = launcher.output();
      const auto at = output.find(str("[worker ", k, "] pid "));
      pids.push_back(at == output.npos ? 0 : std::atoi(output.c_str() + at + str("[worker ", k, "] pid ").size()));
    }
    return pids;
  }
  /// Waits until none of them is left; returns the seconds.
  static double gone_after(const std::vector<pid_t>& pids) {
    const double since = now();
    EXPECT_TRUE(are_gone(pids, kEnough)) << "workers are left behind";
    return now() - since;
  }
};

TEST_F(Launcher, NamesTheWorkerThatWasKilled) {
  Process launcher(words("train", kForLong), {});
  const auto pids = workers_of(launcher);
  ::kill(pids[2], SIGKILL);
  EXPECT_EQ(launcher.wait(kEnough), kPeerLost) << launcher.output();
  EXPECT_TRUE(contains(launcher.output(), str("lockstep: worker 2 (pid ", pids[2], ") was killed by SIGKILL")))
      << launcher.output();
  EXPECT_LT(gone_after(pids), 2);
}

TEST_F(Launcher, NamesTheWorkerThatIsFrozen) {
  Strings all = words("train", kForLong);
  all.insert(all.begin() + 2, {"--failure-grace", "0.5"});
  Process launcher(all, {});
  const auto pids = workers_of(launcher);
  ::kill(pids[1], SIGSTOP);
  EXPECT_EQ(launcher.wait(kEnough), kPeerLost) << launcher.output();
  EXPECT_TRUE(
      contains(launcher.output(), str("\nlockstep: worker 1 (pid ", pids[1], ") did not answer and was stopped, ")))
      << launcher.output();
}

TEST_F(Launcher, NamesTheWorkerWhoseExceptionNobodyCaught) {
  Process launcher(words("uncaught", {}), {});
  EXPECT_EQ(launcher.wait(kEnough), kError) << launcher.output();
  const std::string output = launcher.output();
  const auto at = output.find("\nlockstep: worker 1 (pid ");
  ASSERT_NE(at, output.npos) << output;
  EXPECT_TRUE(contains(output.substr(at), "crashed with SIGABRT")) << output;
  EXPECT_TRUE(contains(output.substr(at), "the disk is full")) << output;
  EXPECT_EQ(output.find("\nlockstep: worker ", at + 1), output.npos) << output;  // one cause
}

TEST_F(Launcher, LeavesNobodyBehindAfterCtrlC) {
  Process launcher(words("train", kForLong), {});
  const auto pids = workers_of(launcher);
  launcher.signal(SIGINT);
  noticed("31 Ctrl-C", 2, gone_after(pids));
  EXPECT_EQ(launcher.wait(kEnough), 130) << launcher.output();
}

TEST_F(Launcher, LeavesNobodyBehindWhenItIsKilled) {
  Process launcher(words("train", kForLong), {});
  const auto pids = workers_of(launcher);
  launcher.signal(SIGKILL);
  noticed("31 launcher killed", 2, gone_after(pids));
}

// ---- faults that training survives

TEST_F(Faults, StrangersAtThePortsDisturbNobody) {
  Job job(3, program("train", {"steps=150"}));
  ASSERT_TRUE(job[0].prints("step 5 ")) << job[0].output();
  std::vector<int> sockets;
  for (const auto& address : job.addresses) {
    for (const std::string& bytes :
         {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff')}) {
      const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
      (void)::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof to);
      pollfd ready{.fd = socket, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, 200);
      (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      sockets.push_back(socket);
    }
  }
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
    const auto at = undisturbed().find("step 150 ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_TRUE(contains(job[k].output(), undisturbed().substr(at, undisturbed().find('\n', at) - at)));
  }
  for (const int socket : sockets) ::close(socket);
}

TEST_F(Faults, AWorkerOfAnEarlierRunIsRefused) {
  Job job(free_addresses(2));
  const Strings second_run{"LOCKSTEP_GENERATION=2"};
  job.start(0, program("train"), second_run);
  auto& old = job.start(1, program("train"), {"LOCKSTEP_GENERATION=1"});
  const double at = expect_error(old, {.code = kError,
                                       .parts = {"error[L118]: worker 1 (" + job.addresses[1] + ") cannot come back"},
                                       .has_weights = false});
  noticed("34 old incarnation", 1,
          at - std::max(time_after("begins at ", old.output()), time_after("begins at ", job[0].output())));
  auto& right = job.start(1, program("train"), second_run);
  EXPECT_EQ(right.wait(kEnough), 0) << right.output();
  EXPECT_EQ(job[0].wait(kEnough), 0) << job[0].output();
}

TEST_F(Faults, DataThatEndsEarlierOnOneWorkerLosesNoRow) {
  Job job(3, program("uneven_data"));
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(job[k].wait(kEnough), 0) << job[k].output();
    EXPECT_TRUE(contains(job[k].output(), "rows 21 total 400")) << job[k].output();
  }
}

}  // namespace
}  // namespace lockstep
