#include "lockstep/comm/communication_options.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/worker_group.h"
#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"

namespace lockstep {
namespace {

const LoggedLines log_of_the_program;

/// Why the options are rejected.
std::string refusal(const CommunicationOptions& options) {
  const SeenError seen = error_of([&] { validated(options); });
  EXPECT_EQ(seen.code, Code::InvalidArgument);
  EXPECT_EQ(seen.number, errors::kBadOption);
  return seen.text;
}

TEST(CommunicationOptions, AreValidByDefault) {
  EXPECT_EQ(validated({}), CommunicationOptions{});
  const CommunicationOptions given{.bytes_per_pack = 1, .timeout_seconds = 0, .implementation = Implementation::Nccl};
  EXPECT_EQ(validated(given), given);
}

TEST(CommunicationOptions, SayOnceThatAnImplementationHasNoEffect) {
  for (int i = 0; i < 3; ++i) validated({.implementation = Implementation::Ring});
  EXPECT_EQ(log_of_the_program.count(" has no effect within a process"), 1);
}

TEST(CommunicationOptions, RefuseANegativePackSize) {
  EXPECT_NE(refusal({.bytes_per_pack = -1}).find("must be >= 0"), std::string::npos);
}

TEST(CommunicationOptions, RefuseATimeoutThatIsNoTime) {
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(refusal({.timeout_seconds = seconds}).find("timeout_seconds"), std::string::npos) << seconds;
  }
}

TEST(CommunicationOptions, RefuseAnUnknownImplementation) {
  for (const int value : {-1, 3}) {
    EXPECT_NE(refusal({.implementation = Implementation{value}}).find("must be a value of the enum"),
              std::string::npos);
  }
}

TEST(CommunicationOptions, OfACallStandAboveThoseOfTheStrategy) {
  const CommunicationOptions base{.bytes_per_pack = 5, .timeout_seconds = 2, .implementation = Implementation::Ring};
  EXPECT_EQ(merge(base, {}), base);
  EXPECT_EQ(merge(base, {.bytes_per_pack = 7}).bytes_per_pack, 7);
  EXPECT_EQ(merge(base, {.timeout_seconds = 0}).timeout_seconds, 0);
  EXPECT_EQ(merge(base, {.implementation = Implementation::Nccl}).implementation, Implementation::Nccl);
  EXPECT_EQ(merge(base, {.implementation = Implementation::Auto}).implementation, Implementation::Ring);
}

TEST(CommunicationOptions, WithoutATimeoutWaitForEver) {
  EXPECT_TRUE(deadline_of({}).is_never());
  EXPECT_TRUE(deadline_of({.timeout_seconds = 0}).is_never());
  // Between workers, the strategy's limit applies only if none was given.
  EXPECT_TRUE(deadline_of({}).is_default());
  EXPECT_FALSE(deadline_of({.timeout_seconds = 0}).is_default());
  EXPECT_FALSE(deadline_of({.timeout_seconds = 60}).is_default());
  EXPECT_LE(deadline_of({.timeout_seconds = 60}).remaining(), std::chrono::minutes(1));
  EXPECT_GT(deadline_of({.timeout_seconds = 60}).remaining(), std::chrono::seconds(50));
}

TEST(Implementation, IsReadInAnyCase) {
  EXPECT_EQ(parse_implementation("auto"), Implementation::Auto);
  EXPECT_EQ(parse_implementation("Ring"), Implementation::Ring);
  EXPECT_EQ(parse_implementation("NCCL"), Implementation::Nccl);
  for (const char* name : {"", "mpi", "rings", "rin"})
    EXPECT_THROW(parse_implementation(name), InvalidArgument) << name;
}

TEST(SumRoute, DependsOnWhatIsAskedForAndOnWorkers) {
  const struct {
    CommunicationFacts facts;
    const char* said;
  } rows[] = {
      {{.workers = 1}, "share their memory"},
      {{.asked = Implementation::Ring, .workers = 1}, "share their memory"},
      {{.workers = 2}, "8192 bytes in one message"},
      {{.workers = 2}, "over TCP"},
      {{.workers = 3, .on_this_host = 2}, "over TCP between hosts"},
      {{.workers = 3, .on_this_host = 3}, "each other's memory"},
      {{.asked = Implementation::Ring, .workers = 3}, "RING: sums by Gloo's ring"},
      {{.asked = Implementation::Nccl, .on_cpu = false, .workers = 2},
       "NCCL is not available, so AUTO: copied through"},
      {{.on_cpu = false, .by_nccl = true, .workers = 2}, "AUTO: gradients by NCCL from GPU"},
      {{.asked = Implementation::Nccl, .on_cpu = false, .by_nccl = true, .workers = 2},
       "NCCL: gradients by NCCL's own sums from GPU to GPU; all else copied through"},
  };
  for (const auto& row : rows) {
    EXPECT_NE(describe_routes(row.facts).find(row.said), std::string::npos) << describe_routes(row.facts);
  }
}

}  // namespace
}  // namespace lockstep
