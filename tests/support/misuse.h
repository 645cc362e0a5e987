#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/replicas.h"

// Tables of misuse: the exception, with its number and words. No mistake may end the process, and after each the
// strategy works as before.
namespace lockstep {

/// Two strategies and their variables, to make mistakes with.
struct World {
  MirroredStrategy a{on_devices(2)};
  MirroredStrategy b{on_devices(2)};
  MirroredStrategy strict{{.devices = test_devices(2), .strict = true}};
  Variable none = a.make_variable(at::zeros({2}), {.name = "none"});
  Variable sum = a.make_variable(at::zeros({2}), {.name = "sum", .aggregation = Aggregation::Sum});
  Variable mean = a.make_variable(at::zeros({2}), {.name = "mean", .aggregation = Aggregation::Mean});
  Variable first = a.make_variable(at::zeros({2}), {.name = "first", .aggregation = Aggregation::OnlyFirstReplica});
  Variable table = a.make_variable(at::zeros({4, 2}), {.name = "table", .aggregation = Aggregation::Sum});
  Variable count = a.make_variable(at::zeros({}, at::kLong), {.name = "count"});
  Variable byte = a.make_variable(at::zeros({}, at::kChar), {.name = "byte"});
  Variable total = a.make_variable(
      at::zeros({2}), {.name = "total", .synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  Variable silent = a.make_variable(at::zeros({2}), {.name = "silent", .synchronization = Synchronization::OnRead});
  Variable foreign = b.make_variable(at::zeros({2}), {.name = "foreign", .aggregation = Aggregation::Sum});
  Variable guarded = strict.make_variable(at::zeros({2}), {.name = "guarded"});
  Variable plain{at::zeros({2}), {.name = "plain"}};

  /// Replica 0 calls one function, the other replicas another.
  template <class F, class G>
  void split(F&& zero, G&& one) {
    a.run([&] { my_id() == 0 ? zero(get_replica_context()) : one(get_replica_context()); });
  }
  template <class F>
  void in_replicas(F&& f) {
    a.run([&] { f(get_replica_context()); });
  }
};

struct Misuse {
  const char* name;
  std::function<void(World&)> call;
  Code code;
  int number;
  std::vector<const char*> fragments;
};

inline void PrintTo(const Misuse& misuse, std::ostream* out) { *out << misuse.name; }

inline constexpr auto kArgument = Code::InvalidArgument;
inline constexpr auto kPrecondition = Code::FailedPrecondition;

inline PerReplica<at::Tensor> pair(const at::Tensor& x, const at::Tensor& y) { return PerReplica<at::Tensor>({x, y}); }
inline IndexedSlices rows(std::vector<std::int64_t> indices, const at::Tensor& values) {
  return {values, at::tensor(indices), {4, 2}};
}

class MisuseTest : public testing::TestWithParam<Misuse> {};

inline std::string misuse_name(const testing::TestParamInfo<Misuse>& info) { return info.param.name; }

}  // namespace lockstep
