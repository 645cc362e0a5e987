#include "lockstep/data/error_counter.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

TEST(ErrorCounter, ErrorsThatAreReplayedAreNotCountedAgain) {
  const auto bad = failing_at({1, 2, 15});
  using Above = std::function<Dataset<at::Tensor>(const Dataset<at::Tensor>&)>;
  const std::vector<std::pair<std::string, Above>> above = {
      {"batch", [](const auto& d) { return d.batch(2); }},
      {"filter", [](const auto& d) { return d.filter([](const at::Tensor&) { return true; }).prefetch(2); }},
      {"shuffle", [](const auto& d) { return d.shuffle(4).batch(2); }},
      {"cache", [](const auto& d) { return d.cache().skip(1).repeat(2); }},
      {"unbatch", [](const auto& d) { return d.batch(3).unbatch(); }}};
  for (const auto& [name, put_above] : above) {
    const auto counter = std::make_shared<ErrorCounter>();
    const auto build = [&] { return put_above(range(20).map(bad).ignore_errors({.counter = counter})); };
    for (int stop_after = 0; stop_after < 5; ++stop_after) {
      const std::int64_t before = counter->count();
      auto it = build().iterator({});
      for (int i = 0; i < stop_after; ++i) it.next();
      auto resumed = resume(build(), it.state());
      while (resumed.next()) {
      }
      EXPECT_EQ(counter->count(), before + 3) << name << ", resumed after " << stop_after;
    }
    const std::int64_t before = counter->count();
    for (int pass = 0; pass < 2; ++pass) places_of(build().iterator({.job_seed = 4, .epoch = 0}));
    EXPECT_EQ(counter->count(), before + 6) << name << ": a pass that is not resumed counts";
  }
}

TEST(ErrorCounter, ANewCounterHasTheErrorsOfTheWholeResumedPass) {
  for (int stop_after = 0; stop_after < 9; ++stop_after) {
    const auto build = [](const std::shared_ptr<ErrorCounter>& counter) {
      return range(20).map(failing_at({1, 2, 15})).ignore_errors({.counter = counter}).batch(2);
    };
    const auto first = std::make_shared<ErrorCounter>(), second = std::make_shared<ErrorCounter>();
    auto it = build(first).iterator({});
    for (int i = 0; i < stop_after; ++i) it.next();
    auto resumed = resume(build(second), it.state());  // as another program would
    EXPECT_EQ(second->count(), first->count()) << "resumed after " << stop_after;
    while (resumed.next()) {
    }
    EXPECT_EQ(second->count(), 3) << "resumed after " << stop_after;
  }
}

TEST(ErrorCounter, StagesThatShareACounterHavePlacesOfTheirOwn) {
  const auto counter = std::make_shared<ErrorCounter>();
  const auto build = [&] {
    return range(20)
        .map(failing_at({1, 6, 11, 16}))
        .ignore_errors({.counter = counter})
        .map(failing_at({2, 7, 12, 17}))
        .ignore_errors({.counter = counter});
  };
  const auto once = build();
  for (int stop_after = 0; stop_after < 13; ++stop_after) {
    for (const auto& dataset : {once, build()}) {
      const std::int64_t before = counter->count();
      auto it = once.iterator();
      for (int i = 0; i < stop_after; ++i) it.next();
      auto resumed = resume(dataset, it.state());
      while (resumed.next()) {
      }
      EXPECT_EQ(counter->count(), before + 8) << "resumed after " << stop_after;
    }
  }
}

}  // namespace
}  // namespace lockstep::data
