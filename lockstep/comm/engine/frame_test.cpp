#include "lockstep/comm/engine/frame.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/errors.h"

namespace lockstep::engine {
namespace {

const std::vector<std::int64_t> kShape{3, 4};

Collective sum_of_twelve() {
  return {.kind = CollectiveKind::AllReduce, .elements = 12, .shape = kShape, .name = "conv1/kernel"};
}

TEST(Fingerprint, PrintsWhatACallWas) {
  EXPECT_EQ(describe(fingerprint_of(sum_of_twelve(), 7)), "all-reduce SUM of float32 [3, 4] \"conv1/kernel\"");
  EXPECT_EQ(describe(fingerprint_of({.kind = CollectiveKind::Barrier, .name = "end"}, 0)), "barrier \"end\"");
  EXPECT_EQ(
      describe(fingerprint_of({.kind = CollectiveKind::Broadcast, .dtype = Dtype::Bool, .elements = 1, .root = 2}, 0)),
      "broadcast of bool 1 element from worker 2");
}

TEST(Fingerprint, ShowsThatANameGoesOn) {
  const std::string name = std::string(90, 'x') + " and what was left of it";
  EXPECT_EQ(describe(fingerprint_of({.kind = CollectiveKind::Barrier, .name = name}, 0)),
            "barrier \"" + name.substr(0, 93) + "...\"");
}

TEST(Fingerprint, OfEqualCallsIsEqual) {
  const std::vector<Fingerprint> all(3, fingerprint_of(sum_of_twelve(), 7));
  EXPECT_EQ(compare(all, 0).what, "");
}

TEST(Fingerprint, SeesEveryDifferenceAndNamesBothSides) {
  struct Case {
    std::function<void(Collective&)> change;
    std::string named;
  };
  const std::vector<std::int64_t> turned{4, 3};
  const std::vector<std::uint64_t> counts{5, 7};
  const std::string long_name(300, 'x');
  const std::vector<Case> cases{
      {[](Collective& c) { c.kind = CollectiveKind::Broadcast; }, "operations"},
      {[](Collective& c) { c.dtype = Dtype::Int32; }, "element types"},
      {[](Collective& c) { c.elements = 13; }, "shapes"},
      {[&](Collective& c) { c.shape = turned; }, "shapes"},
      {[&](Collective& c) { c.counts = counts; }, "shapes"},
      {[](Collective& c) { c.reduce = ReduceOp::Mean; }, "reductions"},
      {[](Collective& c) { c.root = 1; }, "roots"},
      {[](Collective& c) { c.name = "conv2/kernel"; }, "names"},
      {[&](Collective& c) { c.name = long_name; }, "names"},
      {[](Collective& c) { c.implementation = Implementation::Ring; }, "implementations"},
  };
  for (const Case& each : cases) {
    std::vector<Fingerprint> all(4, fingerprint_of(sum_of_twelve(), 7));
    Collective other = sum_of_twelve();
    each.change(other);
    all[2] = fingerprint_of(other, 7);
    const ErrorText seen = compare(all, 1);
    EXPECT_EQ(seen.what, "worker 2 and workers 0, 1 and 3 called collectives with different " + each.named);
    EXPECT_EQ(seen.where, "collective 7 of channel 1");
    EXPECT_TRUE(contains(seen.seen, describe(all[2]))) << seen.seen;
    EXPECT_TRUE(contains(seen.seen, describe(all[0]))) << seen.seen;
  }
}

TEST(Fingerprint, NamesThatDifferOnlyAtTheirEndDiffer) {
  const std::string name(200, 'x');
  Collective a = sum_of_twelve();
  Collective b = sum_of_twelve();
  const std::string one = name + "1";
  const std::string two = name + "2";
  a.name = one;
  b.name = two;
  EXPECT_EQ(compare({fingerprint_of(a, 0), fingerprint_of(b, 0)}, 0).what,
            "worker 1 and worker 0 called collectives with different names");
}

}  // namespace
}  // namespace lockstep::engine
