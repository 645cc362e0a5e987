#pragma once

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/contrib.h"

// Helpers for tests of towers.
namespace lockstep::contrib {

using Agg = VariableAggregation;

inline at::Tensor number(double value) { return at::full({}, value); }
inline double value_of(const at::Tensor& tensor) { return tensor.item<double>(); }
inline std::vector<double> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<double> values;
  for (const auto& tensor : tensors) values.push_back(value_of(tensor));
  return values;
}
using Doubles = std::vector<double>;

/// A strategy of n towers, which tests share.
inline MirroredStrategy& towers(int n) {
  static std::vector<std::unique_ptr<MirroredStrategy>> all(5);
  auto& strategy = all.at(static_cast<std::size_t>(n));
  if (!strategy) strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(n), .seed = 1});
  return *strategy;
}

inline at::Tensor one() { return number(1); }

struct TwoTowers : testing::Test {
  MirroredStrategy strategy{{.devices = cpus(2)}};
  PerDevice<at::Tensor> ids = strategy.call_for_each_tower([] { return number(get_tower_context().tower_id()); });
};

/// The number of each tower.
inline PerDevice<at::Tensor> ids(MirroredStrategy& strategy) {
  return strategy.call_for_each_tower([] { return number(get_tower_context().tower_id()); });
}

}  // namespace lockstep::contrib
