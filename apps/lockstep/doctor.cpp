#include "apps/lockstep/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "apps/lockstep/findings.h"
#include "apps/lockstep/hosts.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/address.h"
#include "lockstep/version.h"

namespace lockstep::app {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
constexpr auto kPeerWait = std::chrono::seconds(2);

class Doctor {
 public:
  void check_versions() {
    utsname system{};
    uname(&system);
    add({Verdict::Ok,
         str("Lockstep ", LOCKSTEP_VERSION, ", ", system.sysname, " ", system.release, ", ", system.machine)});
    std::istringstream folders(
        str(text_of("LOCKSTEP_TORCH_DIR"), "/lib:", text_of("LD_LIBRARY_PATH"), ":", LOCKSTEP_TORCH_LIBRARIES));
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (access((folder + "/libtorch_cpu.so").c_str(), R_OK) == 0) return add({Verdict::Ok, "LibTorch in " + folder});
    }
    add({Verdict::Warning, "LibTorch not found",
         "a program may know where its own is; if not, add that folder to LD_LIBRARY_PATH"});
  }

  void check_cluster(const std::string& text) {
    const auto report = report_cluster(text);
    add(report.finding);
    workers_ = 0;
    bool loopback = true;
    std::set<std::string> names;
    for (const auto& job : report.cluster.jobs()) {
      for (const auto& [index, entry] : report.cluster.tasks(job)) {
        ++workers_;
        const bool mine = report.task.type == job && report.task.index == index;
        check_entry(entry, mine, names, loopback);
      }
    }
    const bool keyed = !text_of("LOCKSTEP_JOB_KEY").empty() || !text_of("LOCKSTEP_JOB_KEY_FILE").empty();
    if (workers_ > 1 && !loopback && !keyed)
      add({Verdict::Warning, "no job key is set",
           "workers on several machines need one: 'lockstep run' makes it, or set LOCKSTEP_JOB_KEY"});
    check_peers();
  }

  void check_machine() {
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
  struct Peer {
    std::string entry;
    int socket = -1;
    int error = EINPROGRESS;
  };

  static std::string text_of(const char* variable) {
    const char* value = getenv(variable);
    return value ? value : "";
  }

  void add(Finding finding) {
    std::cout << to_string(finding) << std::flush;
    findings_.push_back(std::move(finding));
  }

  void check_entry(const std::string& entry, bool mine, std::set<std::string>& names, bool& loopback) {
    Address address;
    try {
      address = parse_address(entry);
    } catch (const Error& error) {
      return add({Verdict::Problem, error.text().what, error.text().help});
    }
    loopback = loopback && is_loopback(address.host);
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    const int failure = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
    const Addresses addresses(found, &freeaddrinfo);
    if (failure != 0) {
      if (names.insert(address.host).second)
        add({Verdict::Problem, str("the name ", address.host, " is not known here: ", gai_strerror(failure)),
             "write its IP address, or add it to /etc/hosts"});
      return;
    }
    // As the workers do it: IPv4 first.
    while (found->ai_family != AF_INET && found->ai_next) found = found->ai_next;
    if (found->ai_family != AF_INET) found = addresses.get();
    const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (mine) {
      // As a worker would: a connection of an earlier run that is still closing is no obstacle.
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      add(judge_own_port(entry, bind(socket, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno));
      close(socket);
    } else {
      const int error = connect(socket, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
      peers_.push_back({entry, socket, error});
    }
  }

  // All were asked at the same time, so that a hundred dead ones cost no more than one.
  void check_peers() {
    const auto deadline = Deadline::after(kPeerWait);
    for (auto& peer : peers_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
      pollfd ready{peer.socket, POLLOUT, 0};
      socklen_t size = sizeof peer.error;
      if (peer.error == EINPROGRESS && poll(&ready, 1, static_cast<int>(left)) <= 0) peer.error = ETIMEDOUT;
      if (peer.error == EINPROGRESS) getsockopt(peer.socket, SOL_SOCKET, SO_ERROR, &peer.error, &size);
      add(judge_peer(peer.entry, peer.error));
      close(peer.socket);
    }
  }

  static double loopback_bandwidth() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
              sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* where = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    bind(listener, where, size);
    listen(listener, 1);
    getsockname(listener, where, &size);
    connect(sender, where, size);
    const int receiver = accept(listener, nullptr, nullptr);
    close(listener);
    std::thread sending([&] {
      const std::vector<char> block(1 << 20);
      for (const auto end = Deadline::after(std::chrono::milliseconds(200)); !end.expired();)
        if (send(sender, block.data(), block.size(), MSG_NOSIGNAL) < 0) break;
      close(sender);
    });
    const auto start = Deadline::Clock::now();
    std::vector<char> block(1 << 20);
    double bytes = 0;
    for (ssize_t count = 0; (count = recv(receiver, block.data(), block.size(), 0)) > 0;)
      bytes += static_cast<double>(count);
    const std::chrono::duration<double> elapsed = Deadline::Clock::now() - start;
    sending.join();
    close(receiver);
    return bytes / elapsed.count();
  }

  std::vector<Finding> findings_;
  std::vector<Peer> peers_;
  int workers_ = 1;
};

}  // namespace

int doctor(const std::string& file) {
  std::ifstream in;
  if (!file.empty() && file != "-") in.open(file);
  if (!file.empty() && file != "-" && !in) throw UsageError(str("cannot read ", file));
  const char* variable = getenv("TF_CONFIG");
  std::string text = variable ? variable : "";
  if (!file.empty()) text.assign(std::istreambuf_iterator<char>(file == "-" ? std::cin : in), {});
  Doctor doctor;
  doctor.check_versions();
  if (!file.empty() || variable)
    doctor.check_cluster(text);
  else
    std::cout << to_string(Finding{Verdict::Ok, "TF_CONFIG is not set: programs train on this machine alone"});
  doctor.check_machine();
  return doctor.finish();
}

}  // namespace lockstep::app
