#include "lockstep/values/print.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/values/per_replica.h"

namespace lockstep {
namespace {

at::Tensor tensor(std::vector<double> values, at::ScalarType dtype) {
  return at::tensor(values, at::kDouble).to(dtype);
}

at::Tensor scalar(double value, at::ScalarType dtype = at::kDouble) { return at::scalar_tensor(value, dtype); }

struct Printed {
  at::Tensor tensor;
  const char* expected;
};

class NumpyRepr : public ::testing::TestWithParam<Printed> {};

// The expected texts were printed by numpy.
TEST_P(NumpyRepr, IsWhatNumpyPrints) { EXPECT_EQ(numpy_repr(GetParam().tensor), GetParam().expected); }

INSTANTIATE_TEST_SUITE_P(
    Scalars, NumpyRepr,
    ::testing::Values(Printed{scalar(1., at::kFloat), "1.0"}, Printed{scalar(0.1, at::kFloat), "0.1"},
                      Printed{scalar(3, at::kLong), "3"}, Printed{scalar(1, at::kBool), "True"},
                      Printed{scalar(1e-5), "1e-05"}, Printed{scalar(1e16), "1e+16"}, Printed{scalar(-0.0), "-0.0"},
                      Printed{scalar(1. / 3), "0.3333333333333333"}, Printed{scalar(1. / 3, at::kFloat), "0.33333334"},
                      Printed{scalar(0.1, at::kHalf), "0.1"}, Printed{scalar(NAN), "nan"},
                      Printed{scalar(123456789, at::kFloat), "1.2345679e+08"},
                      Printed{scalar(65504, at::kHalf), "6.55e+04"}, Printed{scalar(-INFINITY), "-inf"}));

INSTANTIATE_TEST_SUITE_P(
    Arrays, NumpyRepr,
    ::testing::Values(Printed{tensor({1, 2}, at::kFloat), "array([1., 2.], dtype=float32)"},
                      Printed{tensor({1, 2}, at::kDouble), "array([1., 2.])"},
                      Printed{tensor({1, 2}, at::kLong), "array([1, 2])"},
                      Printed{tensor({1, 2}, at::kInt), "array([1, 2], dtype=int32)"},
                      Printed{tensor({-1, 100}, at::kLong), "array([ -1, 100])"},
                      Printed{tensor({1, 0}, at::kBool), "array([ True, False])"},
                      Printed{tensor({1, 1}, at::kBool), "array([ True,  True])"},
                      Printed{tensor({1, 2.25}, at::kDouble), "array([1.  , 2.25])"},
                      Printed{tensor({1e-5, 1}, at::kDouble), "array([1.e-05, 1.e+00])"},
                      Printed{tensor({1e10, 1.5e10}, at::kDouble), "array([1.0e+10, 1.5e+10])"},
                      Printed{tensor({1e-100, 1}, at::kDouble), "array([1.e-100, 1.e+000])"},
                      Printed{tensor({1. / 3, 2. / 3}, at::kDouble), "array([0.33333333, 0.66666667])"},
                      Printed{tensor({1. / 3, 2. / 3}, at::kFloat), "array([0.33333334, 0.6666667 ], dtype=float32)"},
                      Printed{tensor({NAN, -INFINITY, 1.5}, at::kDouble), "array([ nan, -inf,  1.5])"},
                      Printed{tensor({0.1, 0.2}, at::kHalf), "array([0.1, 0.2], dtype=float16)"},
                      Printed{tensor({-1.5, 10.25}, at::kBFloat16), "array([-1.5 , 10.25], dtype=bfloat16)"},
                      Printed{at::zeros({0}, at::kDouble), "array([], dtype=float64)"},
                      Printed{at::zeros({2, 0}), "array([], shape=(2, 0), dtype=float32)"}));

INSTANTIATE_TEST_SUITE_P(
    Layout, NumpyRepr,
    ::testing::Values(Printed{tensor({1, 2, 3, 4}, at::kFloat).reshape({2, 2}),
                              "array([[1., 2.],\n       [3., 4.]], dtype=float32)"},
                      Printed{at::arange(4).reshape({2, 1, 2}), "array([[[0, 1]],\n\n       [[2, 3]]])"},
                      Printed{at::arange(30),
                              "array([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16,\n"
                              "       17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])"},
                      Printed{tensor(std::vector<double>(12, 1.25), at::kFloat),
                              "array([1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25,\n"
                              "       1.25], dtype=float32)"},
                      Printed{tensor(std::vector<double>(9, 1.25), at::kFloat),
                              "array([1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25],\n"
                              "      dtype=float32)"},
                      Printed{at::arange(1200), "array([   0,    1,    2, ..., 1197, 1198, 1199], shape=(1200,))"},
                      Printed{at::arange(1200).reshape({12, 100}),
                              "array([[   0,    1,    2, ...,   97,   98,   99],\n"
                              "       [ 100,  101,  102, ...,  197,  198,  199],\n"
                              "       [ 200,  201,  202, ...,  297,  298,  299],\n"
                              "       ...,\n"
                              "       [ 900,  901,  902, ...,  997,  998,  999],\n"
                              "       [1000, 1001, 1002, ..., 1097, 1098, 1099],\n"
                              "       [1100, 1101, 1102, ..., 1197, 1198, 1199]], shape=(12, 100))"}));

TEST(Print, TensorsThatHoldNoNumbersArePrintedToo) {
  EXPECT_EQ(numpy_repr(at::Tensor()), "None");
  EXPECT_EQ(numpy_repr(at::empty({2}, at::TensorOptions(at::kMeta))), "array(..., shape=(2,), dtype=float32)");
}

TEST(Print, OtherLayoutsAndStridesArePrintedByValue) {
  const at::Tensor matrix = at::arange(4).reshape({2, 2});
  EXPECT_EQ(numpy_str(matrix.t()), "[[0 2] [1 3]]");
  EXPECT_EQ(numpy_str(matrix.to_sparse()), "[[0 1] [2 3]]");
  EXPECT_EQ(numpy_str(tensor({1, 2}, at::kFloat).requires_grad_()), "[1. 2.]");
  EXPECT_EQ(numpy_str(tensor({1}, at::kComplexFloat)), "[(1.0+0.0j)]");
}

TEST(Print, ComponentsAreTensorsOnOneLine) {
  EXPECT_EQ(str(PerReplica<at::Tensor>({scalar(1, at::kFloat)})),
            "PerReplica:{\n  0: Tensor(1.0, shape=(), dtype=float32)\n}");
  EXPECT_EQ(str(Mirrored<at::Tensor>(std::vector<at::Tensor>(2, tensor({1, 2}, at::kFloat)))),
            "Mirrored:{\n  0: Tensor([1. 2.], shape=(2,), dtype=float32),\n"
            "  1: Tensor([1. 2.], shape=(2,), dtype=float32)\n}");
  EXPECT_EQ(str(PerReplica<at::Tensor>({at::Tensor()})), "PerReplica:{\n  0: Tensor(undefined)\n}");
  const at::Tensor columns = at::arange(300).reshape({3, 100}).slice(1, 0, 2);
  EXPECT_EQ(str(PerReplica<std::pair<at::Tensor, int>>({{columns, 1}})),
            "PerReplica:{\n  0: (Tensor([[  0   1] [100 101] [200 201]], shape=(3, 2), dtype=int64), 1)\n}");
}

TEST(Print, ShapesLookLikePythonTuples) {
  EXPECT_EQ(shape_repr({}), "()");
  EXPECT_EQ(shape_repr({2}), "(2,)");
  EXPECT_EQ(shape_repr({2, 3}), "(2, 3)");
}

struct Named {
  at::ScalarType dtype;
  const char* name;
};

class DtypeName : public ::testing::TestWithParam<Named> {};

TEST_P(DtypeName, IsNumpys) { EXPECT_EQ(dtype_name(GetParam().dtype), GetParam().name); }

INSTANTIATE_TEST_SUITE_P(Table, DtypeName,
                         ::testing::Values(Named{at::kFloat, "float32"}, Named{at::kDouble, "float64"},
                                           Named{at::kHalf, "float16"}, Named{at::kBFloat16, "bfloat16"},
                                           Named{at::kLong, "int64"}, Named{at::kInt, "int32"},
                                           Named{at::kShort, "int16"}, Named{at::kChar, "int8"},
                                           Named{at::kByte, "uint8"}, Named{at::kUInt16, "uint16"},
                                           Named{at::kBool, "bool"}, Named{at::kComplexFloat, "complex64"},
                                           Named{at::kFloat8_e5m2, "float8_e5m2"}));

}  // namespace
}  // namespace lockstep
