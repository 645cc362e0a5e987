#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "lockstep/strategy/variable.h"
#include "tests/support/replicas.h"

namespace lockstep {

inline std::string printed(const Variable& variable) {
  std::ostringstream out;
  out << variable;
  return out.str();
}

inline std::vector<double> numbers(const Variable& variable) {
  std::vector<double> result;
  for (const auto& component : variable.values()) result.push_back(component.item<double>());
  return result;
}

using Numbers = std::vector<double>;

/// Variables of a strategy with two replicas.
class VariableTest : public testing::Test {
 protected:
  MirroredStrategy strategy{on_devices(2)};

  Variable make(Aggregation aggregation, Synchronization when = Synchronization::OnWrite,
                at::ScalarType type = at::kFloat) {
    return strategy.make_variable(at::zeros({}, type),
                                  {.name = "v", .synchronization = when, .aggregation = aggregation});
  }
  /// Makes the components different, which assignment cannot do to a mirrored variable with aggregation.
  static void set(const Variable& variable, const Numbers& values) {
    const at::NoGradGuard no_grad;
    for (std::size_t k = 0; k < values.size(); ++k) at::Tensor(variable.values()[k]).fill_(values[k]);
  }
};

}  // namespace lockstep
