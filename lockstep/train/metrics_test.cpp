#include "lockstep/train/metrics.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/train/meters.h"
#include "lockstep/train/metrics/scores.h"
#include "tests/support/expect_error.h"
#include "tests/support/replicas.h"

namespace lockstep::train {
namespace {

using nlohmann::json;

const json& golden() {
  static const json file = json::parse(std::ifstream(LOCKSTEP_TEST_DATA_DIR "/metrics/metrics.json"));
  return file;
}

at::Tensor tensor_of(const std::string& name) {
  const json& values = golden()["data"][name];
  if (values[0].is_number_integer()) return at::tensor(values.get<std::vector<std::int64_t>>());
  if (values[0].is_number()) return at::tensor(values.get<std::vector<float>>());
  std::vector<float> all;
  for (const json& row : values) all.insert(all.end(), row.begin(), row.end());
  return at::tensor(all).view({static_cast<std::int64_t>(values.size()), -1});
}

metrics::ClassOptions class_options(const json& given) {
  static const std::map<std::string, metrics::Average> averages = {
      {"macro", metrics::Average::Macro}, {"micro", metrics::Average::Micro}, {"weighted", metrics::Average::Weighted}};
  return {.classes = given.value("classes", 0),
          .average = averages.at(given.value("average", "macro")),
          .beta = given.value("beta", 1.0)};
}

MetricPtr metric_of(const std::string& name, const json& given) {
  using namespace metrics;
  if (name == "accuracy") return accuracy({.top_k = given.value("top_k", 1)});
  if (name == "binary_accuracy") return binary_accuracy({.threshold = given.value("threshold", 0.5)});
  if (name == "precision") return precision(class_options(given));
  if (name == "recall") return recall(class_options(given));
  if (name == "f_beta") return f_beta(class_options(given));
  if (name == "roc_auc" || name == "roc_auc_near") return auc({.thresholds = given.at("thresholds")});
  if (name == "roc_auc_exact") return auc({.exact = true});
  if (name == "pr_auc_exact") return auc({.curve = Curve::Pr, .exact = true});
  if (name == "pr_auc") return auc({.curve = Curve::Pr, .thresholds = given.at("thresholds")});
  if (name == "mse") return mse();
  if (name == "rmse") return rmse();
  if (name == "mae") return mae();
  if (name == "r2") return r2();
  if (name == "cosine_similarity") return cosine_similarity();
  if (name == "perplexity") return perplexity();
  ADD_FAILURE() << "unknown metric " << name;
  return nullptr;
}

/// Adds batches of 20, 0 and the remaining rows, each cut among the replicas.
void add_all(Strategy& strategy, Meters& meters, const at::Tensor& output, const at::Tensor& target) {
  for (const auto& [begin, end] : std::vector<std::pair<int, int>>{{0, 20}, {20, 20}, {20, 1000}}) {
    const at::Tensor out = output.slice(0, begin, end), wanted = target.slice(0, begin, end);
    strategy.run([&] {
      const int k = my_id(), n = strategy.num_replicas_in_sync();
      meters.add(out.tensor_split(n)[static_cast<std::size_t>(k)], wanted.tensor_split(n)[static_cast<std::size_t>(k)]);
    });
  }
}

TEST(Metrics, AgreeWithScikitLearnForAnyNumberOfReplicas) {
  for (const int replicas : {1, 2, 3, 25}) {
    MirroredStrategy strategy(on_cpus(replicas));
    for (const json& row : golden()["cases"]) {
      const std::string name = row["metric"];
      const MetricPtr metric = metric_of(name, row["options"]);
      Meters meters(strategy, {metric});
      at::Tensor target = tensor_of(row["target"]);
      if (row["target"] == "truth") target = target.to(at::kFloat);
      add_all(strategy, meters, tensor_of(row["output"]), target);
      const double tolerance = name == "roc_auc_near"        ? 0.01
                               : name.ends_with("auc_exact") ? 1e-13
                                                             : 1e-6 * std::max(1.0, row["value"].get<double>());
      EXPECT_NEAR(meters.values().at(metric->name()), row["value"].get<double>(), tolerance)
          << row.dump() << " on " << replicas << " replicas";
    }
  }
}

TEST(Metrics, OfFewScoresOnTheCpuAreThoseOfLibTorchsOperators) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor scores = at::sin(at::arange(40 * 5, at::kDouble)).mul(4).round().div(4).view({40, 5});  // with equal ones
  scores.select(0, 3).fill_(kNan);
  scores.select(0, 4).select(0, 2).fill_(kNan);
  scores.select(0, 5).fill_(-std::numeric_limits<double>::infinity());
  const at::Tensor labels = at::arange(40).remainder(5);
  MirroredStrategy strategy(on_cpus(1));
  for (const int k : {1, 2, 4}) {
    const auto value = [&](at::ScalarType type) {  // the loop takes float32 alone
      Meters meters(strategy, {metrics::accuracy({.top_k = k})});
      strategy.run([&] { meters.add(scores.to(type), labels); });
      return meters.values().at("accuracy");
    };
    EXPECT_EQ(value(at::kFloat), value(at::kDouble)) << k;
    EXPECT_GT(value(at::kFloat), 0);
  }
  for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kBool, at::kHalf}) {
    const at::Tensor few = at::arange(9).remainder(4).to(type), many = few.repeat({1000});
    Meters meters(strategy);
    strategy.run([&] {
      meters.add_mean("few", few);
      meters.add_mean("many", many);
      meters.add_mean("turned", few.view({3, 3}).t());
    });
    const Logs logs = meters.values();
    EXPECT_DOUBLE_EQ(logs.at("few"), few.to(at::kDouble).mean().item<double>());
    EXPECT_DOUBLE_EQ(logs.at("many"), logs.at("few"));
    EXPECT_DOUBLE_EQ(logs.at("turned"), logs.at("few"));
  }
}

TEST(Metrics, ABinnedAreaIsWithinItsBound) {
  MirroredStrategy strategy(on_cpus(1));
  Meters meters(strategy, {metrics::auc()});
  add_all(strategy, meters, tensor_of("chances"), tensor_of("truth"));
  double area = 0, exact = 0;
  for (const json& row : golden()["cases"]) {
    if (row["metric"] == "roc_auc_near") exact = row["value"];
  }
  area = meters.values().at("auc");
  const std::vector<double>& sums = meters.sums().at("auc");
  double pairs = 0, positives = 0, negatives = 0;
  for (std::size_t bin = 0; bin < 199; ++bin) {
    pairs += sums[bin] * sums[199 + bin];
    positives += sums[bin];
    negatives += sums[199 + bin];
  }
  EXPECT_LE(std::abs(area - exact), pairs / (2 * positives * negatives) + 1e-12);
}

TEST(Metrics, AnExactAreaTakesAnyScores) {
  MirroredStrategy strategy(on_cpus(2));
  const auto area = [&](const at::Tensor& scores, const metrics::AucOptions& options) {
    Meters meters(strategy, {metrics::auc(options)});
    add_all(strategy, meters, scores, tensor_of("truth"));
    return meters.values().at("auc");
  };
  const at::Tensor chances = tensor_of("chances"), logits = chances.logit();
  const double exact = area(chances, {.exact = true});
  EXPECT_EQ(area(logits, {.from_logits = true, .exact = true}), exact);
  EXPECT_EQ(area(chances.to(at::kDouble).mul(1e-9).add(7), {.exact = true}), exact)
      << "scores that float32 cannot hold";
  at::Tensor broken = chances.clone();
  broken[3] = std::nan("");
  EXPECT_TRUE(std::isnan(area(broken, {.exact = true})));
  EXPECT_TRUE(std::isnan(metrics::roc_area(std::vector<double>{1, 2}, std::vector<double>{0, 0})));
}

TEST(Metrics, ConfusionKeepsTheWholeMatrix) {
  MirroredStrategy strategy(on_cpus(2));
  Meters meters(strategy, {metrics::confusion({.classes = 5})});
  add_all(strategy, meters, tensor_of("scores"), tensor_of("labels"));
  EXPECT_NEAR(meters.values().at("confusion_accuracy"), 5.0 / 37, 1e-12);
  const auto expected = golden()["confusion_matrix"].get<std::vector<std::vector<std::int64_t>>>();
  EXPECT_EQ(metrics::confusion_matrix(meters.sums().at("confusion_accuracy")), expected);
}

TEST(Metrics, OneHotTargetsCountLikeClassNumbers) {
  MirroredStrategy strategy(on_cpus(2));
  Meters meters(strategy, {metrics::accuracy(), metrics::accuracy({.name = "top3", .top_k = 3})});
  const at::Tensor labels = tensor_of("labels");
  const at::Tensor one_hot = labels.unsqueeze(1).eq(at::arange(5)).to(at::kFloat);
  add_all(strategy, meters, tensor_of("scores"), one_hot);
  EXPECT_NEAR(meters.values().at("accuracy"), 5.0 / 37, 1e-12);
  EXPECT_NEAR(meters.values().at("top3"), 24.0 / 37, 1e-12);
}

TEST(Metrics, SegmentationHasClassesInDimensionOne) {
  MirroredStrategy strategy(on_cpus(1));
  Meters meters(strategy, {metrics::accuracy(), metrics::perplexity({.ignore_index = 1})});
  const at::Tensor scores = at::zeros({2, 3, 4});
  scores.select(1, 2).fill_(1);
  const at::Tensor target = at::zeros({2, 4}, at::kLong);
  target.select(0, 1).fill_(2);
  strategy.run([&] { meters.add(scores, target); });
  EXPECT_DOUBLE_EQ(meters.values().at("accuracy"), 0.5);
  EXPECT_NEAR(meters.values().at("perplexity"), std::exp(std::log(2 + std::exp(1.0)) - 0.5), 1e-6);
}

TEST(Metrics, NanIsNeverRight) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  MirroredStrategy strategy(on_cpus(1));
  Meters meters(strategy, {metrics::accuracy({.top_k = 2}), metrics::mse()});
  strategy.run([&] {
    const at::Tensor scores = at::tensor({nan, nan, nan}).view({1, 3});
    metrics::accuracy({.top_k = 2});
    meters.add_mean("loss", scores);
  });
  EXPECT_TRUE(std::isnan(meters.values().at("loss")));
  Meters counts(strategy, {metrics::accuracy({.top_k = 2})});
  strategy.run([&] { counts.add(at::tensor({nan, nan, nan}).view({1, 3}), at::tensor({1}, at::kLong)); });
  EXPECT_EQ(counts.values().at("accuracy"), 0);
  Meters areas(strategy, {metrics::auc()});
  strategy.run([&] { areas.add(at::tensor({nan, 0.2F, 0.9F}), at::tensor({1.0F, 0.0F, 1.0F})); });
  EXPECT_TRUE(std::isnan(areas.values().at("auc")));
}

TEST(Metrics, NoExamplesGiveNoValue) {
  for (const MetricPtr& metric : {metrics::accuracy(), metrics::perplexity(), metrics::r2(), metrics::auc()}) {
    EXPECT_TRUE(std::isnan(metric->value(std::vector<double>(static_cast<std::size_t>(metric->sums()), 0.0))))
        << metric->name();
  }
  EXPECT_EQ(metrics::precision()->value(std::vector<double>(3, 0.0)), 0);
}

TEST(Metrics, AreasOfExtremeScores) {
  const std::vector<double> none = {0, 0, 0}, low = {3, 0, 0}, high = {0, 0, 2};
  EXPECT_DOUBLE_EQ(metrics::roc_area(high, low), 1);
  EXPECT_DOUBLE_EQ(metrics::roc_area(low, high), 0);
  EXPECT_DOUBLE_EQ(metrics::roc_area(low, low), 0.5);
  EXPECT_TRUE(std::isnan(metrics::roc_area(none, low)));
  EXPECT_TRUE(std::isnan(metrics::roc_area(low, none)));
  EXPECT_DOUBLE_EQ(metrics::average_precision(high, low), 1);
  EXPECT_DOUBLE_EQ(metrics::average_precision(high, none), 1);
  EXPECT_DOUBLE_EQ(metrics::average_precision(low, high), 0.6);
  EXPECT_TRUE(std::isnan(metrics::average_precision(none, low)));
}

struct Mistake {
  std::string name;
  MetricPtr metric;
  at::Tensor output, target;
  std::vector<std::string> fragments;
};

TEST(Metrics, OfTheWrongShapeAreOneError) {
  const at::Tensor scores = at::zeros({4, 3}), column = at::zeros({4, 1}), row = at::zeros({4});
  const at::Tensor labels = at::zeros({4}, at::kLong);
  const std::vector<Mistake> table = {
      {"a column and a row", metrics::mse(), column, row, {"\"mse\"", "same shape", "[4, 1]", "[4]", "squeeze"}},
      {"binary of a column", metrics::binary_accuracy(), column, row, {"\"binary_accuracy\"", "same shape"}},
      {"targets as floats", metrics::accuracy(), scores, row, {"\"accuracy\"", "class numbers", "int64"}},
      {"no class dimension", metrics::accuracy(), row, labels, {"\"accuracy\"", "binary_accuracy"}},
      {"one-hot of other classes", metrics::accuracy(), scores, at::zeros({4, 2}), {"[4, 3]", "[4, 2]"}},
      {"other rows", metrics::accuracy(), scores, labels.slice(0, 0, 3), {"[4, 3]", "[3]"}},
      {"other classes", metrics::confusion({.classes = 4}), scores, labels, {"4 classes", "the output has 3"}},
      {"precision of other classes", metrics::precision({.classes = 2}), scores, labels, {"2 classes", ".classes"}},
      {"language model", metrics::perplexity(), at::zeros({2, 5, 7}), at::zeros({2, 5}, at::kLong), {"dimension 1"}},
      {"cosine of rows", metrics::cosine_similarity(), row, row, {"dimension 1"}},
  };
  MirroredStrategy strategy(on_cpus(2));
  for (const Mistake& mistake : table) {
    Meters meters(strategy, {mistake.metric});
    expect_error([&] { strategy.run([&] { meters.add(mistake.output, mistake.target); }); }, Code::InvalidArgument,
                 errors::kShape, mistake.fragments, mistake.name);
  }
}

TEST(Metrics, OptionsThatMakeNoSenseAreRefused) {
  const auto refuses = [](const auto& make, const std::string& fragment) {
    expect_error([&] { make(); }, Code::InvalidArgument, errors::kBadOption, {fragment}, fragment);
  };
  refuses([] { metrics::accuracy({.top_k = 0}); }, "top_k must be >= 1, got 0");
  refuses([] { metrics::auc({.thresholds = 1}); }, "thresholds must be >= 2, got 1");
  refuses([] { metrics::confusion({.classes = 1}); }, "classes must be >= 2, got 1");
  refuses([] { metrics::f_beta({.beta = 0}); }, "beta must be > 0, got 0");
  refuses([] { metrics::recall({.classes = -1}); }, "got -1");
}

}  // namespace
}  // namespace lockstep::train
