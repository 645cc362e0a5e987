#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/values/local_results.h"
#include "lockstep/values/select.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/golden_nest.h"
#include "tests/support/nest.h"

namespace lockstep {
namespace {

Nest::Variable variable_of(int components) {
  Nest::Variable variable{.whole = std::make_shared<int>(), .component_names = {}, .name = "variable"};
  for (int k = 0; k < components; ++k) variable.component_names.push_back(str("component ", k));
  return variable;
}

class RegroupGolden : public ::testing::TestWithParam<golden::Case> {
 protected:
  int replicas() const { return GetParam()["replicas"].get<int>(); }

  std::vector<Nest> read_per_replica(const nlohmann::json& values) {
    std::vector<Nest> nests;
    for (const auto& value : values) nests.push_back(reader_.read(value, static_cast<int>(nests.size())));
    return nests;
  }

  Nest::Variable variable_ = variable_of(replicas());
  golden::NestReader reader_{[this](const nlohmann::json& json, int replica) -> Nest {
    if (json.contains("the_variable_component")) return variable_.component(static_cast<std::size_t>(replica));
    if (json.contains("the_variable_component_of"))
      return variable_.component(json.at("the_variable_component_of").get<std::size_t>());
    return variable_;
  }};
};

/// The arguments of a C++ call are always a sequence: Python's rules for other arguments have no counterpart.
bool calls_without_sequence(const golden::Case& given) {
  return given.json.contains("args") && !given["args"].is_array();
}

std::vector<golden::Case> cases_of(const char* method) {
  std::vector<golden::Case> cases = golden::cases("regroup");
  std::erase_if(cases, [&](const auto& given) { return given["method"] != method || calls_without_sequence(given); });
  return cases;
}

class ReturnsGolden : public RegroupGolden {};

TEST_P(ReturnsGolden, JoinsWhatReplicasReturn) {
  Nest joined;
  if (!golden::succeeds_as_expected(GetParam(), [&] { joined = regroup(read_per_replica(GetParam()["returns"])); }))
    return;
  EXPECT_TRUE(golden::equal(joined, reader_.read(GetParam().expect().at("value")))) << joined;
  if (!GetParam().expect().contains("local_results")) return;
  const Nest expected = Nest::list(reader_.read_each(GetParam().expect().at("local_results")));
  const Nest results = Nest::list(local_results(joined, replicas()));
  EXPECT_TRUE(golden::equal(results, expected)) << results;
}

INSTANTIATE_TEST_SUITE_P(Golden, ReturnsGolden, ::testing::ValuesIn(cases_of("returns")), golden::name);

class RunArgsGolden : public RegroupGolden {};

TEST_P(RunArgsGolden, SelectsWhatReplicasSee) {
  golden::succeeds_as_expected(GetParam(), [&] {
    const Nest args = Nest::tuple(reader_.read_each(GetParam()["args"]));
    const Nest kwargs = reader_.read_dict(GetParam()["kwargs"]);
    for (int k = 0; k < replicas(); ++k) {
      const Nest seen_args = select_component(args, k);
      const Nest seen_kwargs = select_component(kwargs, k);
      if (!GetParam().expect().contains("seen")) continue;
      const auto& seen = GetParam().expect().at("seen").at(static_cast<std::size_t>(k));
      EXPECT_TRUE(golden::equal(seen_args, Nest::tuple(reader_.read_each(seen.at("args"), k)))) << seen_args;
      EXPECT_TRUE(golden::equal(seen_kwargs, reader_.read_dict(seen.at("kwargs"), k))) << seen_kwargs;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Golden, RunArgsGolden, ::testing::ValuesIn(cases_of("run_args")), golden::name);

class LocalResultsGolden : public RegroupGolden {};

TEST_P(LocalResultsGolden, ListsLocalResults) {
  const std::vector<Nest> results = local_results(reader_.read(GetParam()["value"]), replicas());
  if (GetParam()["value"].contains("variable")) {
    EXPECT_EQ(results.size(), GetParam().expect().at("local_results").size());
    return;
  }
  const Nest expected = Nest::list(reader_.read_each(GetParam().expect().at("local_results")));
  EXPECT_TRUE(golden::equal(Nest::list(results), expected)) << Nest::list(results);
}

INSTANTIATE_TEST_SUITE_P(Golden, LocalResultsGolden, ::testing::ValuesIn(cases_of("local_results")), golden::name);

class ValuesFromFunctionGolden : public RegroupGolden {};

TEST_P(ValuesFromFunctionGolden, WrapsEveryLeaf) {
  Nest joined;
  if (!golden::succeeds_as_expected(
          GetParam(), [&] { joined = regroup(read_per_replica(GetParam()["values"]), /*always_wrap=*/true); }))
    return;
  EXPECT_TRUE(golden::equal(joined, reader_.read(GetParam().expect().at("value")))) << joined;
}

INSTANTIATE_TEST_SUITE_P(Golden, ValuesFromFunctionGolden, ::testing::ValuesIn(golden::cases("values_from_function")),
                         golden::name);

std::string regroup_error(const std::vector<Nest>& per_replica) {
  const SeenError error = error_of([&] { regroup(per_replica); });
  EXPECT_EQ(error.code, Code::InvalidArgument);
  EXPECT_EQ(error.number, errors::kStructure);
  return error.text;
}

TEST(Regroup, ErrorsNameThePlaceAndTheReplicas) {
  const Nest one = Nest::dict({{"a", Nest::list({Nest::tuple({1})})}});
  const Nest two = Nest::dict({{"a", Nest::list({Nest::tuple({1, 2})})}});
  const std::string message = regroup_error({one, one, two});
  for (const char* part : {"replicas returned structures of different lengths", "['a'][0] of", "replicas 0 and 2",
                           "replica 0: (int,); replica 2: (int, int)"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in " << message;
}

TEST(Regroup, DifferentKindsAreTold) {
  EXPECT_NE(regroup_error({Nest::list({}), Nest::tuple({})}).find("lists and tuples"), std::string::npos);
  EXPECT_NE(regroup_error({Nest::tuple({}), 1}).find("not all are tuples"), std::string::npos);
  EXPECT_NE(regroup_error({Nest::dict({{"a", 1}}), Nest::dict({{"b", 1}})}).find("different keys"), std::string::npos);
}

TEST(Regroup, ALeafOnReplicaZeroMakesEverythingALeaf) {
  const Nest joined = regroup({1, Nest::list({2})});
  EXPECT_EQ(str(joined), "PerReplica(1, [2])");
}

TEST(Regroup, NumbersAreTheSameByTypeAndValue) {
  EXPECT_EQ(str(regroup({1, 1})), "1");
  EXPECT_EQ(str(regroup({0.5, 0.5})), "0.5");
  EXPECT_EQ(str(regroup({1, 1.0})), "PerReplica(1, 1.0)");
  EXPECT_EQ(str(regroup({true, 1})), "PerReplica(True, 1)");
}

TEST(Regroup, TensorsAreTheSameByHandle) {
  const at::Tensor shared = at::ones({2});
  EXPECT_TRUE(regroup({shared, shared}).as<at::Tensor>().is_same(shared));
  EXPECT_TRUE(regroup({shared, shared.clone()}).is_distributed());
  EXPECT_TRUE(regroup({shared, shared.alias()}).is_distributed());
}

TEST(Regroup, OneReplicaIsPlainUnlessWrapped) {
  EXPECT_EQ(str(regroup({Nest::list({1, "a"})})), "[1, 'a']");
  EXPECT_EQ(str(regroup({Nest::list({1, "a"})}, /*always_wrap=*/true)), "[PerReplica(1), PerReplica('a')]");
}

TEST(Regroup, ANamedTupleKeepsReplicaZerosType) {
  const Nest point = Nest::named_tuple("Point", {{"x", 1}, {"y", 2}});
  EXPECT_EQ(str(regroup({point, Nest::tuple({3, 2})})), "Point(x=PerReplica(1, 3), y=2)");
}

TEST(Regroup, ComponentsOfTwoVariablesAreAnError) {
  const auto first = variable_of(2), second = variable_of(2);
  EXPECT_EQ(regroup({first.component(0), first.component(1)}).as<Nest::Variable>(), first);
  EXPECT_NE(regroup_error({first.component(0), second.component(1)}).find("different variables"), std::string::npos);
  EXPECT_NE(regroup_error({first.component(0), 1}).find("different variables"), std::string::npos);
}

TEST(Regroup, TwoWholeVariablesStayApart) {
  const auto first = variable_of(2), second = variable_of(2);
  EXPECT_EQ(regroup({Nest(first), Nest(second)}).size(), 2u);
  EXPECT_EQ(regroup({Nest(first), Nest(first)}, /*always_wrap=*/true).as<Nest::Variable>(), first);
}

TEST(Regroup, NothingCannotBeRegrouped) { regroup_error({}); }

}  // namespace
}  // namespace lockstep
