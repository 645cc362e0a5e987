#include "lockstep/comm/reduce_op.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/dtype.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

TEST(ReduceOp, IsReadInAnyCase) {
  for (const char* name : {"sum", "SUM", "Sum"}) EXPECT_EQ(parse_reduce_op(name), ReduceOp::Sum);
  for (const char* name : {"mean", "MEAN"}) EXPECT_EQ(parse_reduce_op(name), ReduceOp::Mean);
  EXPECT_EQ(to_string(ReduceOp::Sum), "SUM");
  EXPECT_EQ(to_string(ReduceOp::Mean), "MEAN");
}

TEST(ReduceOp, RefusesOtherNames) {
  for (const char* name : {"", "max", "sums", "su"}) {
    const SeenError seen = error_of([&] { parse_reduce_op(name); });
    EXPECT_EQ(seen.code, Code::InvalidArgument);
    EXPECT_TRUE(contains(seen.text, "is not a valid ReduceOp")) << seen.text;
  }
}

TEST(Dtype, KnowsItsNameAndSize) {
  struct Row {
    Dtype dtype;
    const char* name;
    std::size_t size;
    bool floating;
  };
  for (const auto& row : {Row{Dtype::Bool, "bool", 1, false}, Row{Dtype::UInt8, "uint8", 1, false},
                          Row{Dtype::Int8, "int8", 1, false}, Row{Dtype::Int16, "int16", 2, false},
                          Row{Dtype::Int32, "int32", 4, false}, Row{Dtype::Int64, "int64", 8, false},
                          Row{Dtype::Float16, "float16", 2, true}, Row{Dtype::BFloat16, "bfloat16", 2, true},
                          Row{Dtype::Float32, "float32", 4, true}, Row{Dtype::Float64, "float64", 8, true}}) {
    EXPECT_EQ(to_string(row.dtype), row.name);
    EXPECT_EQ(size_of(row.dtype), row.size) << row.name;
    EXPECT_EQ(is_floating(row.dtype), row.floating) << row.name;
  }
}

}  // namespace
}  // namespace lockstep
