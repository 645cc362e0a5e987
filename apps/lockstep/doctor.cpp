#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <thread>

#include "apps/lockstep/findings.h"
#include "apps/lockstep/plan.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"
#include "lockstep/version.h"

namespace lockstep::app {
namespace {

constexpr auto kPeerWait = std::chrono::seconds(2);

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

// From its headers; empty if they are not there.
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
    const auto report = report_cluster(text);
    add(report.finding);
    workers_ = 0;
    bool loopback = true;
    std::vector<Address> peers;
    for (const auto& job : report.cluster.jobs()) {
      for (const auto& [index, entry] : report.cluster.tasks(job)) {
        ++workers_;
        try {
          const Address address = parse_address(entry);
          loopback = is_loopback(address.host) && loopback;
          if (report.task.type != job || report.task.index != index) {
            peers.push_back(address);
            continue;
          }
          hold_port_of_entry({job, index, address});
          add({Verdict::Ok, entry + " is free here"});
        } catch (const Error& error) {
          // What is wrong with an address, the report has said.
          if (report.finding.verdict != Verdict::Problem || error.number() == errors::kPortInUse)
            add(problem_of(error));
        }
      }
    }
    several_machines_ = workers_ > 1 && !loopback;
    if (several_machines_ && !key_is_set())
      add({Verdict::Warning, "no job key is set",
           "workers on several machines need one: 'lockstep run' makes it, or set LOCKSTEP_JOB_KEY"});
    const auto reaches = probe(peers, kPeerWait);
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
    std::ifstream memory("/proc/meminfo");
    for (std::string name, unit; memory >> name >> limits.memory && name != "MemAvailable:";)
      std::getline(memory, unit);
    limits.memory *= 1024;
    for (const auto* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
      if (std::uint64_t limit = 0; std::ifstream(path) >> limit) limits.memory_limit = limit;
    }
    for (auto& finding : judge_limits(limits, workers_)) add(std::move(finding));
    add(judge_loopback(loopback_bandwidth()));
  }

  int finish() const {
    std::cout << summary(findings_) << "\n";
    return exit_code(findings_);
  }

 private:
  void add(Finding finding) {
    std::cout << to_string(finding) << std::flush;
    findings_.push_back(std::move(finding));
  }

  std::vector<Finding> findings_;
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
    std::cout << to_string(Finding{Verdict::Ok, "TF_CONFIG is not set: programs train on this machine alone"});
  doctor.check_machine();
  return doctor.finish();
}

}  // namespace lockstep::app
