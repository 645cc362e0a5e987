#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep {

/// Hosts 0 to 2 on this machine, 10.77.1.1 to 10.77.1.3: network namespaces on one bridge, which root can make. The
/// route from one to another can be cut while all others stay open; no host is notified.
class ThreeHosts {
 public:
  ThreeHosts() {
    made_ = run(str("ip netns add ", name(3))) && run(str("ip -n ", name(3), " link add hub type bridge")) &&
            run(str("ip -n ", name(3), " link set hub up"));
    for (int host = 0; made_ && host < 3; ++host) {
      const std::string here = name(host), hub = name(3), plug = str("plug", host);
      made_ = run(str("ip netns add ", here)) &&
              run(str("ip -n ", here, " link add cable type veth peer name ", plug, " netns ", hub)) &&
              run(str("ip -n ", here, " addr add ", address(host), "/24 dev cable")) &&
              run(str("ip -n ", here, " link set lo up")) && run(str("ip -n ", here, " link set cable up")) &&
              run(str("ip -n ", hub, " link set ", plug, " master hub up"));
    }
  }
  ~ThreeHosts() {
    for (int host = 0; host < 4; ++host) run(str("ip netns del ", name(host)));
  }
  ThreeHosts(const ThreeHosts&) = delete;
  ThreeHosts& operator=(const ThreeHosts&) = delete;

  bool made() const { return made_; }
  static std::string address(int host) { return str("10.77.1.", host + 1); }
  /// The command that runs another one on that host.
  static std::vector<std::string> on(int host) { return {"ip", "netns", "exec", name(host)}; }

  /// Redirects traffic from `from` to `to` to a nonexistent network card.
  bool cut(int from, int to) const {
    return run(
        str("ip -n ", name(from), " neigh replace ", address(to), " lladdr 02:00:00:00:00:99 dev cable nud permanent"));
  }
  bool mend(int from, int to) const { return run(str("ip -n ", name(from), " neigh del ", address(to), " dev cable")); }
  /// Nothing reaches this host or leaves it any more.
  bool unplug(int host) const { return run(str("ip -n ", name(3), " link set plug", host, " nomaster")); }
  bool plug_in(int host) const { return run(str("ip -n ", name(3), " link set plug", host, " master hub")); }

 private:
  static std::string name(int host) { return str("lockstep-", ::getpid(), "-", host); }
  static bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

  bool made_ = false;
};

}  // namespace lockstep
