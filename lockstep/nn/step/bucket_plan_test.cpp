#include "lockstep/nn/step/bucket_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace lockstep {
namespace {

using Numbers = std::vector<std::vector<int>>;

std::vector<BucketedParameter> of_sizes(const std::vector<std::size_t>& sizes) {
  std::vector<BucketedParameter> parameters;
  for (std::size_t p = 0; p < sizes.size(); ++p)
    parameters.push_back({.name = "p" + std::to_string(p), .elements = sizes[p]});
  return parameters;
}

Numbers numbers_of(const std::vector<Bucket>& buckets) {
  Numbers numbers;
  for (const Bucket& bucket : buckets) numbers.push_back(bucket.parameters);
  return numbers;
}

TEST(BucketPlan, SmallGradientsFillABucketInTheOrderOfBackward) {
  const auto buckets = plan_buckets(of_sizes({20, 20, 20, 20, 20, 20}), {5, 4, 3, 2, 1, 0}, 400);
  EXPECT_EQ(numbers_of(buckets), (Numbers{{5, 4, 3, 2}, {1, 0}}));
  EXPECT_EQ(buckets[0].begins, (std::vector<std::size_t>{0, 32, 64, 96}));
  EXPECT_EQ(buckets[0].elements, 116u);
  EXPECT_EQ(buckets[0].name, "bucket 1 of 2 (p5, p4, p3 and 1 more; 0.0 MB)");
}

TEST(BucketPlan, ALargeGradientTravelsAloneAndDoesNotWaitForSmallOnes) {
  const auto buckets = plan_buckets(of_sizes({1000, 1, 500, 1}), {3, 2, 1, 0}, 400);
  EXPECT_EQ(numbers_of(buckets), (Numbers{{2}, {0}, {3, 1}}));
  EXPECT_EQ(buckets[0].elements, 500u);
}

TEST(BucketPlan, ElementTypesDoNotMix) {
  auto parameters = of_sizes({1, 1, 1, 1});
  parameters[1].dtype = parameters[3].dtype = Dtype::BFloat16;
  EXPECT_EQ(numbers_of(plan_buckets(parameters, {0, 1, 2, 3}, 1 << 20)), (Numbers{{0, 2}, {1, 3}}));
}

TEST(BucketPlan, WhatDoesNotTravelIsInNoBucketAndWhatTheOrderForgetsComesLast) {
  auto parameters = of_sizes({1, 1, 1});
  parameters[0].travels = false;
  EXPECT_EQ(numbers_of(plan_buckets(parameters, {2, 2, 0}, 1 << 20)), (Numbers{{2, 1}}));
  EXPECT_TRUE(plan_buckets({}, {}, 1).empty());
}

TEST(BucketPlan, EveryGradientHasOnePlace) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> sizes(random() % 30);
    for (auto& size : sizes) size = random() % 3 == 0 ? random() % 5000 : random() % 50;
    std::vector<int> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    order.resize(order.size() - order.size() / 4);
    std::vector<int> seen(sizes.size(), 0);
    for (const Bucket& bucket : plan_buckets(of_sizes(sizes), order, 1 + random() % 8000)) {
      std::size_t end = 0;
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const auto p = static_cast<std::size_t>(bucket.parameters[i]);
        ++seen[p];
        EXPECT_GE(bucket.begins[i], end);
        end = bucket.begins[i] + sizes[p];
      }
      EXPECT_EQ(end, bucket.elements);
    }
    EXPECT_EQ(seen, std::vector<int>(sizes.size(), 1));
  }
}

}  // namespace
}  // namespace lockstep
