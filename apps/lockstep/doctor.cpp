#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <thread>

#include "apps/lockstep/findings.h"
#include "apps/lockstep/plan.h"
#include "apps/lockstep/process.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/tf_config.h"
#include "lockstep/version.h"

namespace lockstep::app {
namespace {

double loopback_bandwidth() {
  const auto end = Deadline::after(std::chrono::milliseconds(200));
  const Descriptor listener = listen_at({"127.0.0.1", 0});
  const Descriptor sender = connect_to(parse_address(own_name(listener.get())), end);
  if (!sender || !is_ready(listener.get(), POLLIN, end)) return 0;
  const Descriptor receiver(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const auto start = Deadline::Clock::now();
  std::vector<char> block(64 << 10);
  double bytes = 0;
  while (!end.expired()) {
    send(sender.get(), block.data(), block.size(), MSG_NOSIGNAL);
    for (ssize_t count = 0; (count = recv(receiver.get(), block.data(), block.size(), 0)) > 0;)
      bytes += static_cast<double>(count);
  }
  return bytes / std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

// From LibTorch's headers; empty if they are missing.
std::string torch_version(const std::string& folder) {
  std::string version;
  for (const char* header : {"/headeronly/version.h", "/csrc/api/include/torch/version.h"}) {
    std::ifstream in(folder + "/../include/torch" + header);
    for (std::string define, name, number; in >> define;) {
      const bool part = define == "#define" && in >> name >> number && name.starts_with("TORCH_VERSION_");
      if (part && (name.ends_with("MAJOR") || name.ends_with("MINOR") || name.ends_with("PATCH")))
        version += str(version.empty() ? "" : ".", number);
    }
  }
  return version;
}

// Reads a TF_CONFIG as far as possible; `task` stays empty if it is not given.
Finding read_cluster(const std::string& text, ClusterSpec& cluster, Task& task) {
  try {
    cluster = tf_config::cluster(text);
    if (cluster.empty())
      return {Verdict::Warning, "TF_CONFIG describes no cluster: programs train only on this machine",
              R"(write {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {...}})"};
    task = {tf_config::task_type(text), tf_config::task_index(text)};
    // A TF_CONFIG without a task is checked as if it were for the first one.
    const auto* const first = cluster.has_job("worker") ? "worker" : "chief";
    describe_cluster(cluster, {task.type.value_or(first), task.index.value_or(0)});
    const auto workers = counted(worker_count(cluster, task.type.value_or("worker")), "worker");
    if (task.type && task.index)
      return {Verdict::Ok, str("TF_CONFIG describes ", workers, "; this is ", *task.type, " ", *task.index)};
    return {Verdict::Warning, str("TF_CONFIG describes ", workers, ", but not which of them this is"),
            R"(add "task": {"type": "worker", "index": 0}, with another index for each worker)"};
  } catch (const Error& error) {
    return problem_of(error);
  }
}

class Doctor {
 public:
  void check_versions() {
    utsname system{};
    uname(&system);
    add({Verdict::Ok,
         str("Lockstep ", LOCKSTEP_VERSION, ", ", system.sysname, " ", system.release, ", ", system.machine)});
    std::istringstream folders(str(environment_variable("LOCKSTEP_TORCH_DIR"),
                                   "/lib:", environment_variable("LD_LIBRARY_PATH"), ":", LOCKSTEP_TORCH_LIBRARIES));
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (access((folder + "/libtorch_cpu.so").c_str(), R_OK) == 0)
        return add(judge_torch(folder, torch_version(folder), LOCKSTEP_TORCH_VERSION));
    }
    add({Verdict::Warning, "LibTorch not found",
         "a program may know where its own is; if not, add that folder to LD_LIBRARY_PATH"});
  }

  void check_cluster(const std::string& text) {
    ClusterSpec cluster;
    Task task;
    const auto finding = read_cluster(text, cluster, task);
    add(finding);
    workers_ = 0;
    bool loopback = true;
    std::vector<Address> peers;
    for (const auto& job : cluster.jobs()) {
      for (const auto& [index, entry] : cluster.tasks(job)) {
        ++workers_;
        try {
          const Address address = parse_address(entry);
          loopback = is_loopback(address.host) && loopback;
          if (task.type != job || task.index != index) {
            peers.push_back(address);
            continue;
          }
          hold_port_of_entry({job, index, address});
          add({Verdict::Ok, entry + " is free here"});
        } catch (const Error& error) {
          // Mistakes in addresses were reported above.
          if (finding.verdict != Verdict::Problem || error.number() == errors::kPortInUse) add(problem_of(error));
        }
      }
    }
    several_machines_ = workers_ > 1 && !loopback;
    if (several_machines_ && !key_is_set())
      add({Verdict::Warning, "no job key is set",
           "workers on several machines need one: 'lockstep run' makes it, or set LOCKSTEP_JOB_KEY"});
    const auto reaches = probe(peers, std::chrono::seconds(2));
    for (size_t i = 0; i < peers.size(); ++i) add(judge_peer(to_string(peers[i]), reaches[i]));
  }

  void check_machine() {
    timex clock{};
    const bool synchronised = adjtimex(&clock) != TIME_ERROR;
    const std::time_t now = std::time(nullptr);
    add(judge_clock(str(std::put_time(std::gmtime(&now), "%F %T UTC")), synchronised, several_machines_));
    Limits limits{.usable_cores = usable_cores(), .all_cores = static_cast<int>(std::thread::hardware_concurrency())};
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    limits.open_files = files.rlim_cur;
    limits.memory =
        1024 * static_cast<std::uint64_t>(std::max(0L, counter(file_text("/proc/meminfo"), "MemAvailable:")));
    for (const auto* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
      if (std::uint64_t limit = 0; std::ifstream(path) >> limit) limits.memory_limit = limit;
    }
    for (auto& finding : judge_limits(limits, workers_)) add(std::move(finding));
    add(judge_loopback(loopback_bandwidth()));
  }

  void add(Finding finding) {
    std::cout << to_string(finding) << std::flush;
    findings.push_back(std::move(finding));
  }

  std::vector<Finding> findings;

 private:
  int workers_ = 1;
  bool several_machines_ = false;
};

}  // namespace

int doctor(const std::string& file) {
  std::string text = environment_variable("TF_CONFIG");
  if (!file.empty()) text = file_text(file == "-" ? "/dev/stdin" : file);
  if (!file.empty() && file != "-" && text.empty()) throw UsageError(str("cannot read ", file, ", or it is empty"));
  Doctor doctor;
  doctor.check_versions();
  if (!file.empty() || getenv("TF_CONFIG"))
    doctor.check_cluster(text);
  else
    doctor.add({Verdict::Ok, "TF_CONFIG is not set: programs train only on this machine"});
  doctor.check_machine();
  std::cout << summary(doctor.findings) << "\n";
  return exit_code(doctor.findings);
}

}  // namespace lockstep::app
