#include "lockstep/comm/cluster/tf_config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "lockstep/comm/cluster/cluster_resolver.h"
#include "tests/support/expect_error.h"

namespace lockstep {
namespace {

void expect_refused(const std::function<void()>& call, const std::vector<std::string>& fragments,
                    const std::string& name) {
  expect_error(call, Code::InvalidArgument, errors::kClusterDescription, fragments, name);
}

TEST(TFConfigText, ThatIsNotJsonIsRefusedWithThePlace) {
  const struct {
    std::string text;
    std::vector<std::string> fragments;
  } table[] = {
      {"", {"is empty", "character 1"}},
      {"   ", {"not JSON"}},
      {"{", {"character 2", "after '{'"}},
      {"{bad", {"character 2", "after '{'"}},
      {R"({"cluster": {},})", {"character 16", "after '{\"cluster\": {},'"}},
      {R"({"cluster": {}} x)", {"character 17"}},
      {R"({'cluster': {}})", {"character 2"}},
      {R"({"task": {"index": NaN}})", {"character 20"}},
      {R"({"task": {"index": -Infinity}})", {"not JSON"}},
      {R"({"task": {"index": 01}})", {"not JSON"}},
      {R"({"task": {"index": 1e999}})", {"not JSON", "1e999"}},
      {"{\"cluster\": \"\xff\"}", {"not JSON"}},
      {R"({"cluster": "\ud800"})", {"not JSON"}},
      {"{\"cluster\": \"a\nb\"}", {"not JSON"}},
      {"{} // done", {"not JSON"}},
      {std::string("{}\0{}", 5), {"not JSON"}},
      {std::string(100'000, '['), {"not JSON"}},
      {std::string(100'000, 'x'), {"not JSON"}},
  };
  for (const auto& [text, fragments] : table) {
    expect_refused([&] { tf_config::cluster(text); }, fragments, text.substr(0, 60));
    expect_refused([&] { tf_config::task_index(text); }, fragments, text.substr(0, 60));
  }
}

TEST(TFConfigText, ThatIsDeeplyNestedIsRead) {
  const std::string deep = std::string(50'000, '[') + std::string(50'000, ']');
  EXPECT_TRUE(tf_config::cluster(deep).empty());
  expect_refused([&] { tf_config::cluster("{\"cluster\": " + deep + "}"); }, {"got a list"}, "cluster");
  expect_refused([&] { tf_config::task_index("{\"task\": {\"index\": " + deep + "}}"); }, {"got a list"}, "index");
}

TEST(TFConfigText, MessagesHoldNoControlCharactersAndStayShort) {
  const SeenError seen = error_of([] { tf_config::cluster("{\"cluster\": \x1b[31m" + std::string(9000, 'y')); });
  EXPECT_EQ(seen.text.find('\x1b'), std::string::npos) << seen.text;
  EXPECT_LT(seen.text.size(), 1000u);
}

TEST(TFConfigCluster, HasTheFormsOfTensorFlow) {
  const struct {
    const char* text;
    const char* cluster;
  } table[] = {
      {"{}", "{}"},
      {"[]", "{}"},
      {"\"abc\"", "{}"},
      {R"({"cluster": {}})", "{}"},
      {R"({"cluster": {"worker": ["a:1", "b:1"]}})", R"({"worker":["a:1","b:1"]})"},
      {R"({"cluster": {"worker": {"1": "b:1", "0": "a:1"}}})", R"({"worker":["a:1","b:1"]})"},
      {R"({"cluster": {"worker": {"2": "c:1", " 0 ": "a:1"}}})", R"({"worker":{"0":"a:1","2":"c:1"}})"},
      {R"({"cluster": {"worker": []}})", R"({"worker":[]})"},
      {R"({"cluster": {"worker": ["a:1"], "chief": ["c:1"]}})", R"({"chief":["c:1"],"worker":["a:1"]})"},
      // The last of several equal keys counts.
      {R"({"cluster": {"worker": ["a:1"]}, "cluster": {"worker": ["b:1"]}})", R"({"worker":["b:1"]})"},
      {R"({"cluster": {"worker": ["a:1"], "worker": ["b:1"]}})", R"({"worker":["b:1"]})"},
      {R"({"cluster": {"worker": {"0": "a:1", "0": "b:1"}}})", R"({"worker":["b:1"]})"},
      {R"({"cluster": {"worker": {"0": "a:1", "00": "b:1"}}})", R"({"worker":["b:1"]})"},
      {R"({"cluster": {"worker": {"00": "a:1", "0": "b:1"}}})", R"({"worker":["b:1"]})"},
      {R"({"cluster": {"worker": {"2147483647": "a:1"}}})", R"({"worker":{"2147483647":"a:1"}})"},
      {R"({"cluster": {"": [""]}})", R"({"":[""]})"},
  };
  for (const auto& [text, cluster] : table) EXPECT_EQ(to_string(tf_config::cluster(text)), cluster) << text;
}

TEST(TFConfigCluster, IsRefusedWithThePlace) {
  const struct {
    const char* text;
    std::vector<std::string> fragments;
  } table[] = {
      {"null", {"must be an object, got null"}},
      {"5", {"got 5"}},
      {"true", {"got true"}},
      {R"(["cluster"])", {"must be an object, got a list"}},
      {R"("my cluster")", {"must be an object"}},
      {R"({"cluster": null})", {"TF_CONFIG, cluster", "got null"}},
      {R"({"cluster": []})", {"got a list"}},
      {R"({"cluster": "a:1"})", {"got \"a:1\""}},
      {R"({"cluster": {"worker": "a:1"}})", {"cluster.worker", "a list or an object"}},
      {R"({"cluster": {"worker": null}})", {"cluster.worker", "got null"}},
      {R"({"cluster": {"worker": ["a:1", 2]}})", {"cluster.worker[1]", "got 2"}},
      {R"({"cluster": {"worker": ["a:1", ["b:1"]]}})", {"cluster.worker[1]", "got a list"}},
      {R"({"cluster": {"chief": ["a:1"], "worker": {"0": {}}}})", {"cluster.worker.0", "got an object"}},
      {R"({"cluster": {"worker": {"x": "a:1"}}})", {"cluster.worker.x", "whole number, got 'x'"}},
      {R"({"cluster": {"worker": {"": "a:1"}}})", {"whole number, got ''"}},
      {R"({"cluster": {"worker": {"1.0": "a:1"}}})", {"got '1.0'"}},
      {R"({"cluster": {"worker": {"2147483648": "a:1"}}})", {"got '2147483648'"}},
      {R"({"cluster": {"worker": {"99999999999999999999": "a:1"}}})", {"whole number"}},
  };
  for (const auto& [text, fragments] : table) expect_refused([&] { tf_config::cluster(text); }, fragments, text);
}

TEST(TFConfigTask, IndexIsConvertedAsTensorFlowDoes) {
  const struct {
    const char* index;
    std::int64_t value;
  } table[] = {{"0", 0},      {"7", 7},     {"1.9", 1},     {"-1.9", -1},
               {"true", 1},   {"false", 0}, {"\" 1 \"", 1}, {"\"-1\"", -1},
               {"\"+3\"", 3}, {"-0", 0},    {"\"007\"", 7}, {"9223372036854775807", 9223372036854775807},
               {"1e3", 1000}};
  for (const auto& [index, value] : table) {
    EXPECT_EQ(tf_config::task_index(std::string("{\"task\": {\"index\": ") + index + "}}"), value) << index;
  }
  for (const char* none : {"{}", "[]", R"({"task": {}})", R"({"task": []})", R"({"task": "worker"})"}) {
    EXPECT_EQ(tf_config::task_index(none), std::nullopt) << none;
    EXPECT_EQ(tf_config::task_type(none), std::nullopt) << none;
  }
}

TEST(TFConfigTask, IndexThatIsNoWholeNumberIsRefused) {
  for (const char* index : {"null", "\"one\"", "\"1.0\"", "\"\"", "\" \"", "\"1 2\"", "\"0x1\"", "\"-\"", "[]", "{}",
                            "18446744073709551615", "99999999999999999999", "1e300", "\"9223372036854775808\""}) {
    expect_refused([&] { tf_config::task_index(std::string("{\"task\": {\"index\": ") + index + "}}"); },
                   {"TF_CONFIG, task.index", "must be a whole number"}, index);
  }
  for (const char* task : {"null", "3", "true", "[\"index\"]", "\"index 0\""}) {
    expect_refused([&] { tf_config::task_index(std::string("{\"task\": ") + task + "}"); }, {"task must be an object"},
                   task);
  }
}

TEST(TFConfigTask, TypeBecomesText) {
  const auto type = [](const std::string& value) {
    return tf_config::task_type("{\"task\": {\"type\": " + value + "}}");
  };
  EXPECT_EQ(type("\"worker\""), "worker");
  EXPECT_EQ(type("5"), "5");
  EXPECT_EQ(type("true"), "True");
  EXPECT_EQ(type("null"), "None");
  expect_refused([&] { type("[]"); }, {"task.type", "got a list"}, "list");
}

class TFConfigVariable : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("TF_CONFIG"); }
  static void set(const char* text) { setenv("TF_CONFIG", text, 1); }
};

TEST_F(TFConfigVariable, IsReadAtEachCall) {
  const TFConfigClusterResolver resolver;
  unsetenv("TF_CONFIG");
  EXPECT_TRUE(describe_cluster(resolver).is_local());
  set(R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})");
  EXPECT_EQ(describe_cluster(resolver).id, 1);
  set(R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})");
  EXPECT_EQ(describe_cluster(resolver).id, 0);
  set("{");
  EXPECT_THROW(resolver.cluster_spec(), InvalidArgument);
}

TEST_F(TFConfigVariable, YieldsToWhatTheProgramSays) {
  set(R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": null})");
  const TFConfigClusterResolver resolver({.task_type = "worker", .task_id = 1});
  EXPECT_EQ(to_string(describe_cluster(resolver).self()), "worker 1 (b:1)");
}

TEST_F(TFConfigVariable, WithoutAClusterNeedsNoTask) {
  set(R"({"task": {"type": "worker", "index": "x"}})");
  EXPECT_TRUE(describe_cluster(TFConfigClusterResolver()).is_local());
}

}  // namespace
}  // namespace lockstep
