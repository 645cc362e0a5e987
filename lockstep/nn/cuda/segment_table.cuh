#pragma once

#include <algorithm>

#include "lockstep/nn/cuda/segment_kernels.h"

// How one launch covers many segments: a table among the kernel's arguments, in which a block of threads finds its own.
namespace lockstep::gpu {

constexpr int kThreads = 256;
constexpr int kChunk = kChunkElements;  // elements of one block of threads
constexpr int kMostPointers = 384;      // so that a table fits into a kernel's 4 KB of arguments
constexpr int kMostRows = 64;
constexpr int kStates = 3;  // target, first and second state come before the gradients

struct Table {
  float* pointers[kMostPointers];  ///< row after row: target, first state, second state, gradients
  std::int64_t elements[kMostRows];
  int first_chunk[kMostRows + 1];  ///< chunks are counted over all rows
  int rows;
  int replicas;
  float divisor;
};

__device__ inline int row_of(const Table& table, int chunk) {
  int low = 0, high = table.rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Calls `launch` with tables that hold all segments that have elements. `fill(i, row)` writes the pointers of segment i.
template <class Fill, class Launch>
cudaError_t for_each_table(const Segments& segments, int replicas, std::int64_t divisor, const Fill& fill,
                           const Launch& launch) {
  Table table;
  table.replicas = replicas;
  table.divisor = static_cast<float>(divisor);
  table.rows = 0;
  table.first_chunk[0] = 0;
  const int columns = kStates + replicas;
  const int most_rows = std::min(kMostRows, kMostPointers / columns);
  const auto flush = [&] {
    if (table.rows > 0) launch(table);
    table.rows = 0;
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].elements == 0) continue;
    fill(i, table.pointers + table.rows * columns);
    table.elements[table.rows] = segments[i].elements;
    const auto chunks = static_cast<int>((segments[i].elements + kChunk - 1) / kChunk);
    table.first_chunk[table.rows + 1] = table.first_chunk[table.rows] + chunks;
    if (++table.rows == most_rows) flush();
  }
  flush();
  return cudaGetLastError();
}

}  // namespace lockstep::gpu
