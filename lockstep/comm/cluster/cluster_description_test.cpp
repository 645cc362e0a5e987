#include "lockstep/comm/cluster/cluster_description.h"

#include <gtest/gtest.h>

#include "lockstep/comm/cluster/cluster_resolver.h"
#include "tests/support/expect_error.h"

namespace lockstep {
namespace {

ClusterDescription described(const char* cluster, const char* type, std::int64_t index) {
  return describe_cluster(parse_cluster(cluster), {.type = type, .index = index});
}

constexpr const char* kFull =
    R"({"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "evaluator": ["e:1"], "ps": ["no address"]})";

TEST(ClusterDescription, NumbersTheChiefFirst) {
  const auto worker = described(kFull, "worker", 1);
  EXPECT_EQ(worker.id, 2);
  EXPECT_EQ(worker.num_workers(), 3);
  EXPECT_FALSE(worker.is_chief());
  EXPECT_EQ(to_string(worker), "worker 3 of 3: worker 1 (w1:1); the chief is chief 0 (c:1)");
  EXPECT_EQ(worker.replica_id(2, 1), 5);
  EXPECT_EQ(to_string(worker.device()), "/job:worker/task:1");
  EXPECT_EQ(to_string(worker.device("CPU", 0)), "/job:worker/task:1/device:CPU:0");
  EXPECT_EQ(to_string(worker.training), R"({"chief":["c:1"],"worker":["w0:1","w1:1"]})");
  EXPECT_TRUE(described(kFull, "chief", 0).is_chief());
  EXPECT_TRUE(described(R"({"worker": ["w0:1", "w1:1"]})", "worker", 0).is_chief());
}

TEST(ClusterDescription, OfAnEvaluatorIsAClusterOfOne) {
  const auto evaluator = described(kFull, "evaluator", 0);
  EXPECT_EQ(evaluator.num_workers(), 1);
  EXPECT_TRUE(evaluator.is_chief());
  EXPECT_EQ(to_string(evaluator.self()), "evaluator 0 (e:1)");
}

TEST(ClusterDescription, WithoutAClusterIsOneWorker) {
  const auto local = describe_cluster(ClusterSpec(), {});
  EXPECT_TRUE(local.is_local());
  EXPECT_EQ(local.num_workers(), 1);
  EXPECT_TRUE(local.is_chief());
  EXPECT_EQ(local.workers_on_this_host(), std::vector<int>{0});
  EXPECT_EQ(to_string(local.device("GPU", 1)), "/device:GPU:1");
}

TEST(ClusterDescription, OnlyTheChiefSaves) {
  EXPECT_EQ(described(kFull, "chief", 0).duties(), Duties{});
  EXPECT_EQ(described(kFull, "worker", 0).duties(), (Duties{.should_checkpoint = false, .should_save_summary = false}));
  EXPECT_TRUE(described(kFull, "worker", 0).duties().should_init);
}

TEST(ClusterDescription, FindsTheWorkersOfAHost) {
  const char* cluster = R"({"worker": ["localhost:1", "Big:1", "127.0.0.1:2", "big:2", "[::1]:3", "other:1"]})";
  EXPECT_EQ(described(cluster, "worker", 0).workers_on_this_host(), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(described(cluster, "worker", 3).workers_on_this_host(), (std::vector<int>{1, 3}));
  EXPECT_EQ(described(cluster, "worker", 5).workers_on_this_host(), (std::vector<int>{5}));
}

TEST(ClusterDescription, RefusesClustersThatCannotTrain) {
  const struct {
    const char* cluster;
    const char* type;
    std::int64_t index;
    std::vector<std::string> fragments;
  } table[] = {
      {R"({"master": ["a:1"]})", "master", 0, {"unknown job 'master'"}},
      {R"({"worker": ["a:1"]})", "boss", 0, {"task type 'boss' is unknown"}},
      {R"({"worker": ["a:1"]})", "chief", 0, {"'chief', which the cluster does not have"}},
      {R"({"chief": ["a:1", "b:1"]})", "chief", 0, {"at most one chief, got 2"}},
      {R"({"evaluator": ["a:1", "b:1"], "worker": ["c:1"]})", "worker", 0, {"at most one evaluator, got 2"}},
      {R"({"worker": ["a:1"]})", "worker", 1, {"worker 1, but the cluster lists 1 worker"}},
      {R"({"worker": ["a:1"]})", "worker", 9'000'000'000, {"worker 9000000000"}},
      {R"({"worker": ["a:1"]})", "worker", -1, {"must be >= 0, got -1"}},
      {R"({"worker": []})", "worker", 0, {"lists 0 workers"}},
      {R"({"chief": [], "worker": ["a:1"]})", "worker", 0, {"job 'chief' of the cluster has no tasks"}},
      {R"({"ps": ["a:1"], "worker": ["b:1"]})", "ps", 0, {"'ps' does not train"}},
      {R"({"worker": ["a:1"]})", "evaluator", 0, {"evaluator, which the cluster does not list"}},
      {R"({"worker": {"1": "a:1"}})", "worker", 0, {"numbered 0, 1, 2, ..."}},
      {R"({"worker": {"-1": "a:1", "0": "b:1"}})", "worker", 0, {"without gaps"}},
      {R"({"worker": {"0": "a:1", "2000000000": "b:1"}})", "worker", 0, {"without gaps"}},
      {R"({"worker": ["a:1", "b"]})", "worker", 0, {"'b' has no port", "worker 1 of the cluster"}},
      {R"({"worker": ["a:1", "b:1", "a:1"]})", "worker", 0, {"worker 2 has the address of worker 0 (a:1)"}},
      {R"({"chief": ["a:1"], "worker": ["a:1"]})", "worker", 0, {"worker 0 has the address of chief 0"}},
  };
  for (const auto& [cluster, type, index, fragments] : table) {
    expect_error([&] { described(cluster, type, index); }, Code::InvalidArgument, errors::kClusterDescription,
                 fragments, cluster);
  }
  for (const Task& task : {Task{}, Task{.type = "worker"}, Task{.index = 0}}) {
    expect_error(
        [&] {
          describe_cluster(ClusterSpec{{"worker", {"a:1"}}}, task);
        },
        Code::InvalidArgument, errors::kClusterDescription, {"of this task is not"});
  }
}

TEST(Address, HasAHostAndAPort) {
  const struct {
    const char* text;
    Address address;
  } table[] = {{"host:2222", {"host", 2222}},
               {"10.0.0.1:1", {"10.0.0.1", 1}},
               {"a-b.c_d:65535", {"a-b.c_d", 65535}},
               {"[::1]:80", {"::1", 80}},
               {"[fe80::1%eth0]:80", {"fe80::1%eth0", 80}}};
  for (const auto& [text, address] : table) {
    EXPECT_EQ(parse_address(text), address) << text;
    EXPECT_EQ(to_string(address), text);
  }
}

TEST(Address, OfAnotherFormIsRefused) {
  for (const char* text :
       {"",          ":",          "a",          "a:",      ":1",      "a:0",          "a:65536", "a:99999999999",
        "a:-1",      "a:+1",       "a: 1",       "a:1 ",    " a:1",    "a b:1",        "a:x",     "a:1:2",
        "::1",       "::1:80",     "[::1]",      "[::1]80", "[::1:80", "::1]:80",      "[]:80",   "[a]:80",
        "[::1]x:80", "[[::1]]:80", "grpc://a:1", "a/b:1",   "a:1/",    "h\xc3\xb6st:1"}) {
    expect_error([&] { parse_address(text); }, Code::InvalidArgument, errors::kClusterDescription, {"address '"}, text);
  }
  EXPECT_THROW(parse_address(std::string(300, 'a') + ":1"), InvalidArgument);
  EXPECT_THROW(parse_address(std::string("a\0b:1", 5)), InvalidArgument);
}

TEST(ClusterSpecText, CanBeReadAgain) {
  for (const ClusterSpec& cluster : {ClusterSpec(), ClusterSpec{{"worker", {"a:1", "b\"\\\n:1"}}, {"chief", {}}},
                                     ClusterSpec::of_tasks({{"worker", {{-1, "a"}, {7, "b"}}}})}) {
    EXPECT_EQ(parse_cluster(to_string(cluster)), cluster) << to_string(cluster);
  }
}

TEST(ClusterDifference, NamesEveryTaskThatDiffers) {
  const ClusterSpec a{{"chief", {"c:1"}}, {"worker", {"w0:1", "w1:1"}}};
  const ClusterSpec b{{"worker", {"w0:1", "x:1", "w2:1"}}};
  EXPECT_EQ(difference(a, "worker 0", a, "worker 1"), "");
  EXPECT_EQ(difference(a, "worker 0", b, "worker 1"),
            "chief 0 is c:1 on worker 0, but missing on worker 1\n"
            "worker 1 is w1:1 on worker 0, but x:1 on worker 1\n"
            "worker 2 is missing on worker 0, but w2:1 on worker 1");
  const ClusterSpec big{{"worker", std::vector<std::string>(1000, "w:1")}};
  EXPECT_TRUE(difference(big, "a", ClusterSpec(), "b").ends_with("\nand 992 more"));
  // Text that a message would shorten or escape counts unchanged.
  const std::string longer(500, 'h');
  EXPECT_NE(difference(ClusterSpec{{"worker", {longer + "1"}}}, "a", ClusterSpec{{"worker", {longer + "2"}}}, "b"), "");
}

TEST(ClusterSpec, ListsOnlySoManyTasks) {
  const auto high = ClusterSpec::of_tasks({{"worker", {{2'000'000'000, "a:1"}}}});
  EXPECT_THROW(high.job_tasks("worker"), InvalidArgument);
  EXPECT_THROW(high.task_address("worker", 1LL << 40), InvalidArgument);
}

TEST(UnionOfClusters, RefusesNullResolvers) { EXPECT_THROW(UnionClusterResolver({nullptr}), InvalidArgument); }

}  // namespace
}  // namespace lockstep
