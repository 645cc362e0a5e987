#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"

// Batches of numbers as lists of lists: one for each replica.
namespace lockstep::data {

using Rows = std::vector<std::int64_t>;

inline Rows rows(const at::Tensor& tensor) {
  const auto flat = tensor.cpu().to(at::kLong).contiguous().view({-1});
  return Rows(flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel());
}

inline std::vector<Rows> rows(const PerReplica<at::Tensor>& value) {
  std::vector<Rows> all;
  for (const at::Tensor& component : value) all.push_back(rows(component));
  return all;
}

template <class D>
std::vector<std::vector<Rows>> steps_of(const D& dataset) {
  std::vector<std::vector<Rows>> steps;
  for (const auto& step : dataset) steps.push_back(rows(step));
  return steps;
}

/// One strategy for all tests of a number of replicas.
inline MirroredStrategy& strategy_of(int replicas) {
  static std::map<int, std::unique_ptr<MirroredStrategy>> strategies;
  auto& strategy = strategies[replicas];
  if (!strategy)
    strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = test_devices(replicas), .seed = 7});
  return *strategy;
}

}  // namespace lockstep::data
