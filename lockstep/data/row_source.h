#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/base/export.h"
#include "lockstep/data/element.h"

namespace lockstep::data {

class BufferPool;

/// Rows that can be read in any order: tensors in memory, a mapped file. Immutable; read by many threads at once.
class LOCKSTEP_EXPORT RowSource {
 public:
  virtual ~RowSource();
  virtual std::int64_t size() const = 0;
  /// The rows of these indices as one batch, in new memory from `pool`.
  virtual void gather(std::span<const std::int64_t> indices, BufferPool& pool, Element& batch) const = 0;
  /// One row, in new memory: user functions may write into it.
  virtual Element row(std::int64_t index) const = 0;
};
using RowSourcePtr = std::shared_ptr<const RowSource>;  ///< rows that can be read in any order

}  // namespace lockstep::data
