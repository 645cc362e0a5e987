#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::bench {

/// The input of all pipelines: rows of 784 floats with a label each.
struct Images {
  at::Tensor image, label;
};

/// A pipeline that reads all rows once and returns their number.
struct Pipeline {
  std::string who;   ///< "lockstep", "torch::data"
  std::string name;  ///< "memory", "mapped", "records"
  std::function<std::int64_t()> read_all;
};

/// memory : shuffle(10,000) -> batch(256) -> prefetch
/// mapped : the same with x / 255 - 0.5 of every row, on two threads
/// records: four TFRecord files, interleaved -> shuffle(10,000) -> batch(256) -> parse -> prefetch
/// The record files are written below `folder`.
std::vector<Pipeline> lockstep_pipelines(const Images& images, const std::string& folder);

/// memory and mapped as users of LibTorch write them: a random sampler, Stack, and two workers.
std::vector<Pipeline> torch_data_pipelines(const Images& images);

}  // namespace lockstep::bench
