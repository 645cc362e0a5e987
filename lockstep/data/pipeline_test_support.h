#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

using Rows = std::vector<std::vector<std::int64_t>>;

inline std::vector<std::int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

inline Rows rows_of(DatasetIterator<at::Tensor> iterator) {
  Rows rows;
  while (auto element = iterator.next()) rows.push_back(integers(*element));
  return rows;
}
inline Rows rows_of(const Dataset<at::Tensor>& dataset) { return rows_of(dataset.iterate({})); }

/// The elements of a dataset of scalars.
inline std::vector<std::int64_t> values_of(const Dataset<at::Tensor>& dataset) {
  std::vector<std::int64_t> values;
  for (const auto& row : rows_of(dataset)) values.insert(values.end(), row.begin(), row.end());
  return values;
}

/// 0, 1, ... count - 1.
inline std::vector<std::int64_t> counting(std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(i);
  return values;
}

/// Numbers from a stage that is no source of rows, so that stages behind it take their general path.
inline Dataset<at::Tensor> opaque_range(std::int64_t count) {
  return range(count).map([](at::Tensor x) { return x; });
}

}  // namespace lockstep::data
