#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// Memory for batches that is used again once the batch is gone. Fresh memory costs a page fault per
/// 4 KB, which is more than copying the rows. Used by one thread at a time.
class LOCKSTEP_EXPORT BufferPool {
 public:
  /// `limit`: how many buffers are remembered; more may be in use, they are then freed as any tensor.
  explicit BufferPool(std::size_t limit = 64) : limit_(limit) {}

  /// A contiguous CPU tensor with unspecified contents that shares memory with no other tensor.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  std::size_t limit_;
  std::size_t oldest_ = 0;
  std::vector<c10::Storage> storages_;
};

}  // namespace lockstep::data
