#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// Memory for batches, reused once a batch is freed. Fresh memory costs a page fault per 4 KB, which is more than
/// copying the rows. For one thread at a time.
class LOCKSTEP_EXPORT BufferPool {
 public:
  /// `limit`: how many buffers the pool remembers. Further buffers are freed like any other tensor.
  explicit BufferPool(std::size_t limit = 64) : limit_(limit) {}

  /// A contiguous CPU tensor with unspecified contents that shares memory with no other tensor.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  std::size_t limit_;
  std::size_t oldest_ = 0;
  std::vector<c10::Storage> storages_;
};

}  // namespace lockstep::data
