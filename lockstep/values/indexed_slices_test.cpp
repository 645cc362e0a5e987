#include "lockstep/values/indexed_slices.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/values/print.h"

namespace lockstep {
namespace {

IndexedSlices sample() {
  return {.values = at::tensor({1.F, 2.F, 3.F}).reshape({3, 1}),
          .indices = at::tensor({int64_t{2}, int64_t{0}, int64_t{2}}),
          .dense_shape = {4, 1}};
}

TEST(IndexedSlices, DenseRowsAreTheSumsOfTheirSlices) {
  EXPECT_EQ(numpy_str(sample().to_dense().reshape(-1)), "[2. 0. 4. 0.]");
}

TEST(IndexedSlices, AreOneLeaf) { EXPECT_FALSE(is_structure_v<IndexedSlices>); }

TEST(IndexedSlices, PrintTheirParts) {
  EXPECT_EQ(str(sample()),
            "IndexedSlices(indices=Tensor([2 0 2], shape=(3,), dtype=int64), values=Tensor([[1.] [2.] [3.]], "
            "shape=(3, 1), dtype=float32), dense_shape=(4, 1))");
}

struct Fault {
  const char* name;
  void (*break_it)(IndexedSlices&);
};

class BadIndexedSlices : public ::testing::TestWithParam<Fault> {};

TEST_P(BadIndexedSlices, AreRefused) {
  IndexedSlices slices = sample();
  check_indexed_slices(slices, "test");
  GetParam().break_it(slices);
  EXPECT_THROW(check_indexed_slices(slices, "test"), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Table, BadIndexedSlices,
                         ::testing::Values(Fault{"no_values", [](auto& s) { s.values.reset(); }},
                                           Fault{"no_indices", [](auto& s) { s.indices.reset(); }},
                                           Fault{"float_indices", [](auto& s) { s.indices = at::ones({3}); }},
                                           Fault{"too_few_indices", [](auto& s) { s.indices = s.indices.slice(0, 1); }},
                                           Fault{"scalar_values", [](auto& s) { s.values = at::ones({}); }},
                                           Fault{"other_columns",
                                                 [](auto& s) {
                                                   s.dense_shape = {4, 2};
                                                 }},
                                           Fault{"other_rank", [](auto& s) { s.dense_shape = {4}; }}),
                         [](const auto& given) { return given.param.name; });

TEST(IndexedSlices, WithoutDenseShapeCannotBeMadeDense) {
  IndexedSlices slices = sample();
  slices.dense_shape.clear();
  check_indexed_slices(slices, "test");
  EXPECT_THROW(slices.to_dense(), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
