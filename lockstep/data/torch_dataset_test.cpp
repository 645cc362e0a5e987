#include "lockstep/data/torch_dataset.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms.h>

#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;

struct SquaresOfTorch {
  struct Example {
    at::Tensor data, target;
  };
  std::optional<std::size_t> size() const { return 5; }
  Example get(std::size_t i) {
    return {at::scalar_tensor(double(i)), at::scalar_tensor(std::int64_t(i * i), at::kLong)};
  }
};

TEST(TorchDatasets, AreSources) {
  const auto batches = from_torch_dataset(SquaresOfTorch()).batch(3).to_vector();
  EXPECT_EQ(integers(batches[1].second), (Values{9, 16}));
}

struct LabelsAsNumbers {
  struct Example {
    at::Tensor data;
    std::int64_t target;
  };
  std::optional<std::size_t> size() const { return 3; }
  Example get(std::size_t i) { return {at::scalar_tensor(double(i)), static_cast<std::int64_t>(7 + i)}; }
};

TEST(TorchDatasets, MayHaveNumbersAsTargets) {
  const auto batch = from_torch_dataset(LabelsAsNumbers()).batch(3).to_vector().at(0);
  EXPECT_EQ(integers(batch.second), (Values{7, 8, 9}));
  EXPECT_EQ(batch.second.scalar_type(), at::kLong);
}

struct RowsOfATensor {
  struct Example {
    at::Tensor data;
  };
  at::Tensor rows;
  std::optional<std::size_t> size() const { return rows.size(0); }
  Example get(std::size_t i) { return {rows[static_cast<std::int64_t>(i)]}; }
};

TEST(TorchDatasets, AreNotWrittenToByAMap) {
  const at::Tensor given = at::arange(1, 4);
  const auto tens = from_torch_dataset(RowsOfATensor{given}).map([](at::Tensor x) { return x.mul_(10); });
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(values_of(tens), (Values{10, 20, 30}));
  const auto batches = from_torch_dataset(RowsOfATensor{given}).batch(1).map([](at::Tensor x) { return x.mul_(10); });
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(values_of(batches), (Values{10, 20, 30}));
  EXPECT_EQ(integers(given), (Values{1, 2, 3}));
}

/// As programs write them.
struct Squares : torch::data::datasets::Dataset<Squares> {
  torch::data::Example<> get(std::size_t i) override {
    const auto number = static_cast<std::int64_t>(i);
    return {at::full({1, 1, 2}, static_cast<double>(number)), at::scalar_tensor(number * number, at::kLong)};
  }
  std::optional<std::size_t> size() const override { return 5; }
};

TEST(TorchDatasets, BringTheirTransforms) {
  const auto halves = [] { return torch::data::transforms::Normalize<>(1.0, 2.0); };  // (x - 1) / 2
  const at::Tensor expected = (at::arange(5, at::kFloat) - 1) / 2;
  const auto check = [&](const auto& dataset) {
    const auto all = dataset.batch(5).to_vector();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_TRUE(at::equal(all[0].first, at::stack({expected, expected}, 1).view({5, 1, 1, 2}))) << all[0].first;
    EXPECT_EQ(integers(all[0].second), (Values{0, 1, 4, 9, 16}));
    EXPECT_EQ(dataset.cardinality(), Cardinality(5));
    EXPECT_EQ(to_string(dataset.element_spec()), "(float32?, int64?)");
    const auto rows = dataset.to_vector();
    ASSERT_EQ(rows.size(), 5u);
    EXPECT_EQ(rows[3].second.dim(), 0);
    EXPECT_TRUE(at::equal(rows[3].first, at::full({1, 1, 2}, 1.0F)));
    EXPECT_EQ(integers(dataset.shuffle(5, {.seed = 1}).skip(4).batch(2).to_vector().at(0).second).size(), 1u);
  };
  check(from_torch_dataset(Squares().map(halves())));
  check(from_torch_dataset(Squares().map(halves()).map(torch::data::transforms::Stack<>())));
  EXPECT_EQ(from_torch_dataset(Squares().map(halves())).to_string(), "torch_dataset(5 rows)\n");
}

TEST(TorchDatasets, MustKeepTheirRowsApart) {
  const auto sums = torch::data::transforms::BatchLambda<std::vector<torch::data::Example<>>, torch::data::Example<>>(
      [](std::vector<torch::data::Example<>> rows) {
        at::Tensor sum = at::zeros({1, 2});
        for (const auto& row : rows) sum = sum + row.data;
        return torch::data::Example<>(sum, at::zeros({1}, at::kLong));
      });
  const auto dataset = from_torch_dataset(Squares().map(sums));
  const std::string error = error_of([&] { dataset.batch(3).to_vector(); });
  EXPECT_TRUE(contains(error, "as many rows as asked for")) << error;
}

}  // namespace
}  // namespace lockstep::data
