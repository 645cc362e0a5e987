#include "lockstep/comm/unproven.h"

#include <gtest/gtest.h>

#include <chrono>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// From these hosts, in order of arrival; '!' marks one that has sent something.
std::vector<Unproven> waiting_from(const std::vector<std::string>& hosts) {
  std::vector<Unproven> waiting;
  auto time = Deadline::Clock::time_point{};
  for (const std::string& host : hosts) {
    const bool has_spoken = host.ends_with('!');
    waiting.push_back({has_spoken ? host.substr(0, host.size() - 1) : host, time += 1s, has_spoken});
  }
  return waiting;
}

const Places kPlaces{.kept = {{"a", 2}, {"b", 3}}, .others = 2};

TEST(Unproven, TheOneToCloseIsOfTheHostThatFloods) {
  struct Row {
    std::vector<std::string> waiting;
    std::string comes;
    std::optional<std::size_t> closed;
  };
  for (const Row& row : std::vector<Row>{
           {{}, "a", {}},
           {{"a"}, "a", {}},
           {{"a", "a"}, "a", 0},
           {{"a!", "a"}, "a", 1},                 // the silent one goes
           {{"a", "a"}, "b", {}},                 // another host of the cluster has its own places
           {{"x", "x"}, "a", {}},                 // strangers take none of these
           {{"a", "a", "b", "b", "b"}, "x", {}},  // nor do the cluster's hosts take strangers' places
           {{"x", "y"}, "z", 0},                  // strangers share their places
           {{"y", "x", "x"}, "z", 1},             // the host with the most of them pays
           {{"a", "y", "a", "x!", "x"}, "z", 4},
       }) {
    EXPECT_EQ(one_to_close(waiting_from(row.waiting), row.comes, kPlaces), row.closed) << row.comes;
  }
}

TEST(Unproven, EveryWorkerHasAPlaceAndTheirSumStaysSmall) {
  EXPECT_EQ(places_for({"a", "a", "b"}).kept, (std::map<std::string, std::size_t>{{"a", 18}, {"b", 17}}));
  EXPECT_EQ(places_for(std::vector<std::string>(100, "a")).of("a"), 132U);
  EXPECT_EQ(places_for({}).of("a"), Places{}.others);
}

}  // namespace
}  // namespace lockstep
