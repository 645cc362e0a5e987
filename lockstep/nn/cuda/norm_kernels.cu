#include "lockstep/nn/cuda/norm_kernels.h"

#include "lockstep/nn/cuda/segment_table.cuh"

namespace lockstep::gpu {
namespace {

/// A block's sum, in an order that depends on its threads' numbers alone; right on thread 0.
__device__ double sum_of_threads(double mine) {
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  return parts[0];
}

template <class T>
__device__ double squares_between(const T* values, std::int64_t begin, std::int64_t end) {
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto x = static_cast<double>(values[i]);
    sum += x * x;
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) squares_of_rows(const __grid_constant__ Table table) {
  const int row_index = row_of(table, static_cast<int>(blockIdx.x));
  float* const* const row = table.pointers + row_index * kStates;
  const int chunk = static_cast<int>(blockIdx.x) - table.first_chunk[row_index];
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * kChunk;
  const std::int64_t end = min(begin + kChunk, table.elements[row_index]);
  const double sum = sum_of_threads(row[0] == nullptr ? 0.0 : squares_between(row[0], begin, end));
  if (threadIdx.x == 0) reinterpret_cast<double*>(row[1])[chunk] = sum;
}

/// Level by level, neighbours are added in pairs, and one that is left over waits for the next level: the tree T(0, n).
__global__ void __launch_bounds__(kThreads)
    tree_to_factor(const double* sums, std::size_t count, double max_norm, double* scratch, double* factor) {
  const double* from = sums;
  double* into = scratch;
  while (count > 1) {
    const std::size_t pairs = count / 2;
    for (std::size_t i = threadIdx.x; i < pairs; i += kThreads) into[i] = from[2 * i] + from[2 * i + 1];
    if (count % 2 == 1 && threadIdx.x == 0) into[pairs] = from[count - 1];
    __syncthreads();
    from = into;
    into = into == scratch ? scratch + (count + 1) / 2 : scratch;
    count = pairs + count % 2;
  }
  if (threadIdx.x == 0) *factor = max_norm / (sqrt(count == 0 ? 0.0 : from[0]) + 1e-6);
}

__global__ void __launch_bounds__(kThreads)
    multiply(const __grid_constant__ Table table, const double* factor, bool only_shrink) {
  const double wanted = *factor;
  if (only_shrink && !(wanted < 1.0)) return;
  const auto f = static_cast<float>(wanted);
  const int row_index = row_of(table, static_cast<int>(blockIdx.x));
  float* const values = table.pointers[row_index * kStates];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - table.first_chunk[row_index]) * kChunk;
  const std::int64_t end = min(begin + kChunk, table.elements[row_index]);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) values[i] *= f;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    squares(const T* values, std::int64_t elements, std::int64_t block, double* sums) {
  const std::int64_t begin = blockIdx.x * block;
  const std::int64_t end = blockIdx.x + 1 == gridDim.x ? elements : begin + block;
  const double sum = sum_of_threads(squares_between(values, begin, end));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
cudaError_t launch_squares(const T* values, std::int64_t elements, std::int64_t block, double* sums, std::size_t blocks,
                           cudaStream_t stream) {
  if (blocks > 0) squares<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(values, elements, block, sums);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sum_squares_in_blocks(const float* values, std::int64_t elements, std::int64_t block, double* sums,
                                  std::size_t blocks, cudaStream_t stream) {
  return launch_squares(values, elements, block, sums, blocks, stream);
}

cudaError_t sum_squares_in_blocks(const double* values, std::int64_t elements, std::int64_t block, double* sums,
                                  std::size_t blocks, cudaStream_t stream) {
  return launch_squares(values, elements, block, sums, blocks, stream);
}

cudaError_t sum_squares_of_segments(const Segments& segments, const std::vector<double*>& sums, cudaStream_t stream) {
  const auto fill = [&](std::size_t i, float** row) {
    row[0] = segments[i].target;
    row[1] = reinterpret_cast<float*>(sums[i]);
  };
  return for_each_table(segments, 0, 1, fill, [&](const Table& table) {
    squares_of_rows<<<static_cast<unsigned>(table.first_chunk[table.rows]), kThreads, 0, stream>>>(table);
  });
}

cudaError_t norm_factor(const double* sums, std::size_t count, double max_norm, double* scratch, double* factor,
                        cudaStream_t stream) {
  tree_to_factor<<<1, kThreads, 0, stream>>>(sums, count, max_norm, scratch, factor);
  return cudaGetLastError();
}

namespace {

cudaError_t launch_multiply(const Segments& segments, const double* factor, bool only_shrink, cudaStream_t stream) {
  const auto fill = [&](std::size_t i, float** row) { row[0] = segments[i].target; };
  return for_each_table(segments, 0, 1, fill, [&](const Table& table) {
    multiply<<<static_cast<unsigned>(table.first_chunk[table.rows]), kThreads, 0, stream>>>(table, factor, only_shrink);
  });
}

}  // namespace

cudaError_t shrink_segments(const Segments& segments, const double* factor, cudaStream_t stream) {
  return launch_multiply(segments, factor, /*only_shrink=*/true, stream);
}

cudaError_t multiply_segments(const Segments& segments, const double* factor, cudaStream_t stream) {
  return launch_multiply(segments, factor, /*only_shrink=*/false, stream);
}

}  // namespace lockstep::gpu
