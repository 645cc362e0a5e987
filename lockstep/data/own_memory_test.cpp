// How functions and consumers may use the tensors that they are given.
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;

TEST(OwnMemory, RowsOfAnExpandedBatchAreWrittenIntoOneByOne) {
  const auto expanded = range(2).map([](const at::Tensor& x) { return (x * 10).view({1}).expand({4}); });
  for (const int calls : {0, 1, 2}) {
    const auto added = expanded.unbatch().map([](at::Tensor x) { return x.add_(1); }, {.parallel_calls = calls});
    EXPECT_EQ(values_of(added), (Values{1, 1, 1, 1, 11, 11, 11, 11})) << calls;
  }
}

TEST(OwnMemory, RowsThatAreMadeLargerLeaveTheirNeighboursAlone) {
  const auto rows = from_tensor_slices(at::arange(24).view({12, 2}));
  const auto grow = [](at::Tensor x) {
    const at::Tensor sum = x.sum();
    x.resize_({4}).fill_(-1);
    return sum;
  };
  const Values sums{1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45};
  for (const int calls : {0, 1, 2}) {
    EXPECT_EQ(values_of(rows.map(grow, {.parallel_calls = calls})), sums) << calls;
    EXPECT_EQ(values_of(rows.batch(5).unbatch().map(grow, {.parallel_calls = calls})), sums) << calls;
  }
}

TEST(OwnMemory, SourcesAndCachesGiveTensorsWithoutAGraph) {
  const at::Tensor weights = at::ones({3, 2}).requires_grad_();
  const auto captured = range(3).map([weights](const at::Tensor&) { return weights; });
  const struct {
    std::string name;
    Dataset<at::Tensor> dataset;
  } kTable[] = {
      {"from_tensors", from_tensors(weights)},
      {"from_tensors, cached", from_tensors(weights).cache()},
      {"from_tensor_slices", from_tensor_slices(weights)},
      {"a function's results, cached", captured.cache()},
      {"batches of them, cached", captured.batch(2).cache()},
      {"rows of batches", captured.unbatch()},
  };
  for (const auto& row : kTable) {
    for (int pass = 0; pass < 2; ++pass) {
      for (const at::Tensor& x : row.dataset.to_vector()) EXPECT_FALSE(x.requires_grad()) << row.name << ", " << pass;
    }
  }
  EXPECT_TRUE(weights.requires_grad());
}

TEST(SparseSlices, AreTheRowsOfSparseTensors) {
  const at::Tensor dense = at::arange(12).view({4, 3}).remainder(5).mul(at::tensor({1, 0, 1}, at::kLong));
  const at::Tensor uncoalesced =
      at::sparse_coo_tensor(dense.to_sparse().indices().flip(1), dense.to_sparse().values().flip(0), {4, 3});
  for (const at::Tensor& given : {dense.to_sparse(), uncoalesced, dense.to_sparse_csr()}) {
    const auto slices = from_tensor_slices(std::pair{given, at::arange(4)});
    EXPECT_EQ(to_string(slices.element_spec()), "(sparse int64[3], int64[])");
    std::int64_t i = 0;
    for (const auto& [row, number] : slices) {
      EXPECT_TRUE(row.is_sparse());
      EXPECT_TRUE(row.to_dense().equal(dense[i++]));
    }
    EXPECT_EQ(i, 4);
    const at::Tensor order = at::tensor({2, 3, 0, 1, 2, 3, 0, 1}, at::kLong);
    const auto rotated = slices.skip(2).concatenate(slices.take(2)).repeat(2).batch(3).to_vector();
    const auto gathered = slices.shard(2, 1).batch(2).to_vector();
    const auto mapped = slices.map(
                                  [](at::Tensor x, at::Tensor y) {
                                    return std::pair{x, y};
                                  },
                                  {.parallel_calls = 2})
                            .batch(3)
                            .to_vector();
    EXPECT_TRUE(rotated.at(2).first.is_sparse());
    EXPECT_TRUE(rotated.at(1).first.to_dense().equal(dense.index_select(0, order.narrow(0, 3, 3))));
    EXPECT_TRUE(gathered.at(0).first.is_sparse());
    EXPECT_TRUE(gathered.at(0).first.to_dense().equal(dense.index_select(0, at::tensor({1, 3}, at::kLong))));
    EXPECT_TRUE(mapped.at(0).first.to_dense().equal(dense.narrow(0, 0, 3)));
    EXPECT_TRUE(slices.batch(4).unbatch().to_vector().at(3).first.to_dense().equal(dense[3]));
  }
}

TEST(SparseSlices, AreDenseWhereOnlyTheFirstDimensionIsSparse) {
  const at::Tensor dense = at::tensor({0, 7, 0, 9}, at::kLong);
  const auto slices = from_tensor_slices(dense.to_sparse());
  EXPECT_EQ(to_string(slices.element_spec()), "int64[]");
  EXPECT_EQ(values_of(slices), (std::vector<std::int64_t>{0, 7, 0, 9}));
  EXPECT_EQ(rows_of(slices.batch(3)), (Rows{{0, 7, 0}, {9}}));
}

TEST(SparseSlices, CannotBeComparedOrWrittenToAFile) {
  const auto slices = from_tensor_slices(at::eye(3).to_sparse());
  for (const auto& refused : {slices.unique(), slices.cache("/tmp/lockstep_sparse_cache")}) {
    const std::string text = error_of([&] { refused.to_vector(); });
    EXPECT_NE(text.find("a sparse tensor has no values in order"), std::string::npos) << text;
    EXPECT_NE(text.find("to_dense()"), std::string::npos) << text;
  }
}

TEST(OwnMemory, ACacheKeepsSparseTensorsAsTheyAre) {
  const auto sparse =
      range(3).map([](const at::Tensor& x) { return at::eye(2).mul(x.item<double>() + 1).to_sparse(); }).cache();
  for (int pass = 0; pass < 3; ++pass) {
    double expected = 1;
    for (at::Tensor& x : sparse.to_vector()) {
      EXPECT_TRUE(x.is_sparse());
      EXPECT_EQ(x.to_dense().sum().item<double>(), 2 * expected) << "pass " << pass;
      x.mul_(-1);
      ++expected;
    }
    EXPECT_EQ(expected, 4);
  }
}

}  // namespace
}  // namespace lockstep::data
