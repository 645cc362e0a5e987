#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

// Connections that have not proven anything yet: how many may wait at a port, and which one is closed for a new one.
namespace lockstep {

/// How many of them a port keeps open.
struct Places {
  std::map<std::string, std::size_t> kept = {};  ///< by numeric host, for the hosts of the cluster
  std::size_t others = 16;                       ///< for all other hosts together

  std::size_t of(const std::string& host) const {
    const auto found = kept.find(host);
    return found == kept.end() ? others : found->second;
  }
};

/// `hosts`: one entry per worker. Every worker has its own place, and each host some for connections that close at
/// once.
Places places_for(const std::vector<std::string>& hosts);

/// A connection's known properties.
struct Unproven {
  std::string host = {};  ///< numeric
  Deadline::Clock::time_point since = Deadline::Clock::now();
  bool has_spoken = false;
};

/// The index of the connection to close so that one more from `host` may stay; nothing if there is room. A flood closes
/// its own connections: the victim is from the host with the most among those that share its places. Silent ones go
/// first, then the oldest, since an honest worker sends at once.
template <class Connection>
std::optional<std::size_t> one_to_close(const std::vector<Connection>& waiting, const std::string& host,
                                        const Places& places) {
  const bool is_kept = places.kept.contains(host);
  std::map<std::string, std::size_t> counts;
  std::size_t total = 0;
  for (const Connection& one : waiting) {
    if (is_kept ? one.host != host : places.kept.contains(one.host)) continue;
    ++counts[one.host];
    ++total;
  }
  if (total < places.of(host)) return {};
  std::optional<std::size_t> found;
  const auto goes_before = [&](const Connection& a, const Connection& b) {
    if (counts[a.host] != counts[b.host]) return counts[a.host] > counts[b.host];
    return a.has_spoken != b.has_spoken ? b.has_spoken : a.since < b.since;
  };
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (counts.contains(waiting[i].host) && (!found || goes_before(waiting[i], waiting[*found]))) found = i;
  }
  return found;
}

/// Logs at most every few seconds how many connections were closed.
class ClosedCount {
 public:
  explicit ClosedCount(std::string port) : port_(std::move(port)) {}
  void add(const std::string& host);

 private:
  const std::string port_;
  std::size_t count_ = 0;
  std::optional<Deadline> quiet_ = {};
};

}  // namespace lockstep
