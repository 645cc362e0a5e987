#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "lockstep/data/dataset.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::data {

/// The elements of this worker's replicas in a stream that all workers read: element i belongs to replica i mod n.
template <class T>
Dataset<T> own_elements(const Strategy& strategy, const Dataset<T>& dataset) {
  if (strategy.num_workers() == 1) return dataset;
  const int replicas = strategy.num_replicas_in_sync(), here = strategy.num_local_replicas(),
            worker = strategy.worker_id();
  const auto is_own = [=](const std::pair<at::Tensor, T>& element) {
    return element.first.template item<std::int64_t>() % replicas / here == worker;
  };
  return dataset.enumerate().filter(is_own).map([](const std::pair<at::Tensor, T>& element) { return element.second; });
}

}  // namespace lockstep::data
