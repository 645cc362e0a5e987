// The command line, and launching on many hosts: ssh and srun are scripts here that stay on this machine.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <sstream>

#include "tests/support/launches.h"

namespace lockstep {
namespace {

// A folder with a program of this name, first in the path.
class FakeProgram {
 public:
  FakeProgram(const std::string& name, const std::string& script) {
    std::filesystem::permissions(folder_.file(name, "#!/bin/sh\n" + script), std::filesystem::perms::owner_all);
  }
  std::string path() const { return "PATH=" + folder_.path().string() + ":" + getenv("PATH"); }

 private:
  const TemporaryFolder folder_;
};

const FakeProgram& fake_ssh() {
  static const FakeProgram ssh("ssh", "for last; do :; done; exec env -i PATH=\"$PATH\" sh -c \"$last\"\n");
  return ssh;
}

TEST(Run, OneHostOfManyRunsItsOwnWorkers) {
  Launch launch(
      {"run", "-H", "a:2,b:2", "--host-index", "1", "--port", "3000", LOCKSTEP_TEST_WORKER, "environment", "TF_CONFIG"},
      {"LOCKSTEP_JOB_KEY=" + std::string(64, 'a')});
  EXPECT_EQ(launch.wait(), 0);
  const std::string cluster =
      R"({"cluster":{"worker":["a:3000","a:3001","b:3000","b:3001"]},"task":{"type":"worker","index":)";
  EXPECT_TRUE(contains(launch.out(), "[worker 2] " + cluster + "2")) << launch.out();
  EXPECT_TRUE(contains(launch.out(), "[worker 3] " + cluster + "3")) << launch.out();
  EXPECT_EQ(count(launch.out(), "\n"), 2);
}

TEST(Hosts, SshRunsTheWorkersOfAllHostsAsOneJob) {
  Launch launch({"run", "-H", "a:2,b:1", "--ssh", "--port", "3000", LOCKSTEP_TEST_WORKER, "environment", "TF_CONFIG",
                 "environment", "LOCKSTEP_JOB_KEY", "environment", "LOCKSTEP_RUN_ID", "environment", "LOCKSTEP_TLS_KEY",
                 "only", "2", "print", "a 'quoted' text"},
                {fake_ssh().path(), "LOCKSTEP_TLS_KEY=/my keys/host.key"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  std::vector<Strings> lines(3);
  std::istringstream in(launch.out());
  for (std::string line; std::getline(in, line);)
    lines.at(static_cast<size_t>(line.at(8) - '0')).push_back(line.substr(11));
  for (const auto& worker : lines) {
    ASSERT_GE(worker.size(), 4u) << launch.out();
    EXPECT_TRUE(contains(worker[0], R"({"cluster":{"worker":["a:3000","a:3001","b:3000"]})")) << worker[0];
    EXPECT_EQ(worker[1].size(), 64u);
    EXPECT_EQ(worker[1], lines[0][1]);
    EXPECT_EQ(worker[2], lines[0][2]);
    EXPECT_EQ(worker[3], "/my keys/host.key");
  }
  EXPECT_EQ(lines[2].back(), "a 'quoted' text");
}

TEST(Hosts, AFailureOnOneHostEndsTheOthers) {
  const TemporaryFolder pids;
  Launch launch({"run",
                 "-H",
                 "a:1,b:1",
                 "--ssh",
                 "--failure-grace",
                 "0.1",
                 LOCKSTEP_TEST_WORKER,
                 "pid",
                 pids.path(),
                 "leave",
                 kTerm,
                 "143",
                 "sleep",
                 "0.3",
                 "only",
                 "1",
                 "error",
                 "error[L504]: loss is NaN",
                 "exit",
                 "4"},
                {fake_ssh().path()});
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_EQ(count(launch.err(), "lockstep: worker 1 (pid "), 1) << launch.err();
  EXPECT_EQ(count(launch.err(), "lockstep: "), 1) << launch.err();
  EXPECT_EQ(count(launch.err(), " on b) exited with code 4"), 1) << launch.err();
  EXPECT_EQ(count(launch.err(), "  | error[L504]"), 1) << launch.err();
  EXPECT_TRUE(are_gone(processes(pids, 2)));
}

TEST(Hosts, AKilledWorkerIsNamedOnceThoughOthersNoticeIt) {
  const std::string others = "sleep 0.3; echo 'error[L104]: worker 1 (b:2222) ended without leaving' >&2; exit 3";
  for (const auto& [end, cause] : std::vector<std::pair<std::string, std::string>>{
           {"kill -9 $$", "lockstep: worker 1 (pid "},
           {"exec sleep 100", "  | [worker "}}) {  // 0 or 2: both notice it at the same time
    Launch launch({"run", "-H", "a:1,b:1,c:1", "--ssh", "--failure-grace", "0.1", "sh", "-c",
                   "case $TF_CONFIG in *'\"index\":1'*) " + end + ";; esac; " + others},
                  {fake_ssh().path()});
    EXPECT_EQ(launch.wait(seconds(30)), 3) << launch.err();
    EXPECT_EQ(count(launch.err(), "lockstep: "), 1) << launch.err();
    EXPECT_TRUE(contains(launch.err(), cause)) << launch.err();
  }
}

TEST(Hosts, SigtermTravelsToTheWorkersOfAllHosts) {
  const TemporaryFolder pids;
  Launch launch({"run", "-H", "a:1,b:1", "--ssh", LOCKSTEP_TEST_WORKER, "leave", kTerm, "143", "pid", pids.path(),
                 "sleep", "100"},
                {fake_ssh().path()});
  const auto workers = processes(pids, 2);
  kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143) << launch.err();
  EXPECT_TRUE(are_gone(workers));
}

TEST(Hosts, AKilledLauncherTakesTheWorkersOfAllHostsWithIt) {
  const TemporaryFolder pids;
  Launch launch(
      {"run", "-H", "a:1,b:1", "--ssh", LOCKSTEP_TEST_WORKER, "ignore", kTerm, "pid", pids.path(), "sleep", "100"},
      {fake_ssh().path()});
  const auto workers = processes(pids, 2);
  kill(launch.pid(), SIGKILL);
  EXPECT_TRUE(are_gone(workers, seconds(3)));
}

TEST(Hosts, InsideASlurmAllocationEveryTaskIsAWorker) {
  const FakeProgram srun("srun",
                         "while case $1 in --*) true;; *) false;; esac; do shift; done\n"
                         "SLURM_NODEID=0 \"$@\" & SLURM_NODEID=1 \"$@\" & wait\n");
  const Strings slurm{srun.path(), "SLURM_JOB_ID=77", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_TASKS_PER_NODE=2,1"};
  Launch launch({"run", LOCKSTEP_TEST_WORKER, "environment", "TF_CONFIG"}, slurm);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(count(launch.out(), "\n"), 3) << launch.out();
  EXPECT_TRUE(contains(launch.out(), "[worker 2] {\"cluster\":{\"worker\":[\"n1:")) << launch.out();
}

// The output of `lockstep doctor` for a TF_CONFIG, and its exit code.
struct Examination {
  explicit Examination(const std::string& tf_config) {
    const TemporaryFolder folder;
    Launch launch({"doctor", "--tf-config", folder.file("tf_config.json", tf_config)});
    code = launch.wait();
    text = launch.out();
  }
  int code;
  std::string text;
};

int listening_socket(int& port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* where = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, where, size) != 0 || listen(listener, 1) != 0 || getsockname(listener, where, &size) != 0)
    throw std::runtime_error("no port");
  port = ntohs(address.sin_port);
  return listener;
}

TEST(Doctor, FindsAPortThatIsTakenAndAPeerThatAnswers) {
  int port = 0, free_port = 0;
  const int listener = listening_socket(port);
  close(listening_socket(free_port));
  const auto entry = "127.0.0.1:" + std::to_string(port), other = "127.0.0.1:" + std::to_string(free_port);
  const auto config = [&](int task) {
    return R"({"cluster": {"worker": [")" + entry + R"(", ")" + other + R"("]}, "task": {"type": "worker", "index": )" +
           std::to_string(task) + "}}";
  };
  const Examination first(config(0)), second(config(1));
  close(listener);
  EXPECT_EQ(first.code, 1) << first.text;
  EXPECT_TRUE(contains(first.text,
                       "problem  port " + std::to_string(port) + " of worker 0 (" + entry + ") is in use (process "))
      << first.text;
  EXPECT_TRUE(contains(first.text, "ok       " + other + " is reachable, but no worker listens")) << first.text;
  EXPECT_EQ(second.code, 0) << second.text;
  EXPECT_TRUE(contains(second.text, "ok       " + entry + " answers\n")) << second.text;
  EXPECT_TRUE(contains(second.text, "ok       TF_CONFIG describes 2 workers; this is worker 1")) << second.text;
  EXPECT_TRUE(contains(second.text, "ok       " + other + " is free here\n")) << second.text;
}

TEST(Doctor, NamesWhatIsWrongWithACluster) {
  for (
      const auto& [config, text] : std::vector<std::pair<std::string, std::string>>{
          {"{", "problem  "},
          {R"({"cluster": {"worker": ["no-such-host.invalid:1"]}})",
           "problem  no-such-host.invalid:1 cannot be reached: name not known"},
          {R"({"cluster": {"worker": ["127.0.0.1"]}})", "problem  "},
          {R"({"cluster": {"worker": ["192.0.2.1:2222"]}, "task": {"type": "worker", "index": 0}})",
           "is not an address of this host"},
          {R"({"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 1}})", "problem  "},
          {R"({"cluster": {"worker": ["127.0.0.1:41001", "127.0.0.1:41002"]}, "task": {"type": "worker", "index": -1}})",
           "problem  the index of a task must be >= 0, got -1"},
          {R"({"cluster": {"worker": ["127.0.0.1:41001", "127.0.0.1:41001"]}})",
           "problem  worker 1 has the address of worker 0 (127.0.0.1:41001)"}}) {
    const Examination examination(config);
    EXPECT_EQ(examination.code, 1) << examination.text;
    EXPECT_TRUE(contains(examination.text, text)) << examination.text;
    EXPECT_TRUE(contains(examination.text, "1 problem, ")) << examination.text;
  }
}

TEST(Doctor, IsContentWithoutACluster) {
  Launch launch({"doctor"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_TRUE(contains(launch.out(), "ok       TF_CONFIG is not set")) << launch.out();
  EXPECT_TRUE(contains(launch.out(), "ok       Lockstep ")) << launch.out();
  EXPECT_TRUE(contains(launch.out(), "ok       the clock says 20")) << launch.out();
}

TEST(Doctor, KnowsTheVersionOfLibTorch) {
  const TemporaryFolder torch;
  for (const char* folder : {"lib", "include/torch/csrc/api/include/torch"})
    std::filesystem::create_directories(torch / folder);
  torch.file("lib/libtorch_cpu.so", "");
  torch.file("include/torch/csrc/api/include/torch/version.h",
             "/// Major\n#define TORCH_VERSION_MAJOR 1\n#define TORCH_VERSION_MINOR 2\n#define TORCH_VERSION_PATCH 3\n"
             "#define TORCH_VERSION_ABI_TAG 0\n#define TORCH_VERSION \\\n  \"1.2.3\"\n");
  Launch launch({"doctor"}, {"LOCKSTEP_TORCH_DIR=" + torch.path().string()});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_TRUE(contains(launch.out(), "  LibTorch 1.2.3 in " + torch.path().string() + "/lib")) << launch.out();
}

TEST(CommandLine, AnswersWithAnExitCodeAndOneLine) {
  struct Row {
    Strings arguments;
    int code;
    std::string text;
  };
  const std::vector<Row> table{
      {{"--version"}, 0, "lockstep "},
      {{"explain", "L101"}, 0, "L101: Replicas meet"},
      {{"explain", "102"}, 0, "L102: "},
      {{"explain", "error[L102]"}, 0, "L102: "},
      {{"explain", "L"}, 2, "no error has the number 'L'"},
      {{"run", "-n", "1", "--", "sh", "-c", "echo $0", "--"}, 0, "[worker 0] --\n"},
      {{"run", "-n", "1", "sh", "-c", "echo $0", "--"}, 0, "[worker 0] --\n"},
      {{"run", "--help"}, 0, "lockstep run -n 4 ./train"},
      {{"run", "-H", "a:2,b:1", "./train"}, 0, "--host-index 1"},
      {{"tune", "--help"}, 0, "lockstep tune --remember -- ./train"},
      {{"tune"}, 2, "name the program to measure"},
      {{"tune", "-r", "0", "./train"}, 2, "--replicas: must be a number from 1 to 4096, got '0'"},
      {{"tune", "-s", "0", "./train"}, 2, "--seconds: must be a number from 1 to 100000, got '0'"},
      {{"tune", "--rememeber", "./train"}, 2, "unknown option '--rememeber'"},
      {{"tune", "no-such-program"}, 2, "written ./no-such-program"},
      {{"doctor", "--tf-config", "/no/such"}, 2, "cannot read /no/such"},
      {{"doctor", "--tf-config", "/tmp"}, 2, "cannot read /tmp"},
      {{}, 2, "name a command"},
      {{"walk"}, 2, "name a command"},
      {{"explain", "L1"}, 2, "no error has the number 'L1'"},
      {{"explain", "L4294967400"}, 2, "no error has the number 'L4294967400'"},
      {{"run"}, 2, "name the program to run"},
      {{"run", "./train"}, 2, "choose where to run"},
      {{"run", "-n", "0", "./train"}, 2, "--workers: must be a number from 1 to 4096, got '0'"},
      {{"run", "-H", "a,b", "--port", "65536", "./train"}, 2, "--port: must be a number from 1 to 65535, got '65536'"},
      {{"run", "-n", "2", "--grace", "-1", "./train"}, 2, "--grace: must be a number from 0 to 1000000, got '-1'"},
      {{"run", "-n", "2", "--grace", "nan", "./train"}, 2, "--grace: must be a number from 0 to 1000000, got 'nan'"},
      {{"run", "-n", "2", "--restarts", "-1", "./train"}, 2, "--restarts: must be a number from 0 to 1000000"},
      {{"run", "-n", "2", "--ssh", "./train"}, 2, "--ssh needs the machines"},
      {{"run", "-n", "2", "--port", "3000", "./train"}, 2, "--port is for several machines"},
      {{"run", "-n", "2", "-H", "a", "./train"}, 2, "only one of -n, -H and --hostfile"},
      {{"run", "-n", "2", "--restrats", "1", "./train"}, 2, "unknown option '--restrats'"},
      {{"run", "-n", "2", "no-such-program"}, 2, "written ./no-such-program"},
      {{"run", "-H", "a,a", "./train"}, 2, "listed twice"},
      {{"run", "--hostfile", "/no/such", "./train"}, 2, "cannot read the hostfile"},
      {{"run", "--hostfile", "/tmp", "./train"}, 2, "cannot read the hostfile"},
      {{"run", "-H", "a", "--host-index", "1", "./train"}, 2, "--host-index must be 0 to 0"},
      {{"run", "-H", "a", "--host-index", "0", "./train"}, 2, "set LOCKSTEP_JOB_KEY"},
      {{"run", "-n", "1", "--log-dir", "/proc/x", "true"}, 2, "cannot make the folder"},
  };
  for (const auto& row : table) {
    Launch launch(row.arguments);
    EXPECT_EQ(launch.wait(), row.code) << row.text;
    const auto output = row.code == 0 ? launch.out() : launch.err();
    EXPECT_TRUE(contains(output, row.text)) << output;
    EXPECT_TRUE(row.code == 0 || count(output, "\n") == 1) << output;
  }
}

}  // namespace
}  // namespace lockstep
