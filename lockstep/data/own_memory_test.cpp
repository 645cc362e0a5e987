// What functions and consumers may do with the tensors that they are given.
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
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
