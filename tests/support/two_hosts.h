#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep {

/// Two hosts on this machine, 10.77.0.1 and 10.77.0.2: network namespaces connected by a cable, which root can make and
/// unplug.
class TwoHosts {
 public:
  TwoHosts() {
    made_ = run({"ip netns add A", "ip netns add B", "ip -n A link add cable type veth peer name cable netns B",
                 "ip -n A addr add 10.77.0.1/24 dev cable", "ip -n B addr add 10.77.0.2/24 dev cable",
                 "ip -n A link set lo up", "ip -n A link set cable up", "ip -n B link set lo up",
                 "ip -n B link set cable up"});
  }
  ~TwoHosts() { run({"ip netns del A", "ip netns del B"}); }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool made() const { return made_; }
  /// Nothing arrives any more, and neither side is notified.
  bool pull_out() const {
    return run({"tc -n A qdisc add dev cable root netem loss 100%",
                "tc -n B qdisc add dev cable root netem loss 100%"}) ||
           run({"ip -n B link set cable down"});
  }
  /// The command that runs another one on host 'a' or 'b'.
  static std::vector<std::string> on(char host) { return {"ip", "netns", "exec", name(host)}; }

 private:
  static std::string name(char host) { return str("lockstep-", ::getpid(), "-", host); }
  static bool run(const std::vector<std::string>& commands) {
    return std::all_of(commands.begin(), commands.end(), [](std::string command) {
      for (std::size_t at; (at = command.find_first_of("AB")) != std::string::npos;)
        command.replace(at, 1, name(command[at] == 'A' ? 'a' : 'b'));
      return std::system((command + " 2>/dev/null").c_str()) == 0;
    });
  }

  bool made_ = false;
};

}  // namespace lockstep
