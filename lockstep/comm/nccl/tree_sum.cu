#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "lockstep/comm/nccl/tree_sum.h"

namespace lockstep::nccl {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostBlocks = 132 * 16;  // more than fit at once on any GPU
constexpr int kTreeDepth = 9;                  // of kMostInputs

// How elements are added and divided: each result is rounded to the type, as ordered_sum.cpp does it.
template <class T>
__device__ T add(T a, T b) {
  return static_cast<T>(a + b);
}
template <>
__device__ __half add(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
template <>
__device__ __nv_bfloat16 add(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

template <class T>
__device__ T divide(T a, std::int64_t by) {
  return a / static_cast<T>(by);
}
template <>
__device__ __half divide(__half a, std::int64_t by) {
  return __float2half_rn(__half2float(a) / static_cast<float>(by));
}
template <>
__device__ __nv_bfloat16 divide(__nv_bfloat16 a, std::int64_t by) {
  return __float2bfloat16_rn(__bfloat162float(a) / static_cast<float>(by));
}

template <class T>
struct Sum {
  const T* inputs[kMostInputs];
  int count;
  T* output;
  std::size_t elements;
  std::int64_t divisor;
};

/// The tree T(0, count): complete pairs of neighbours are added as soon as both are there, like the carries of a counter.
/// kCount: 0, or the count where the compiler can keep the tree in registers.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) walk(const __grid_constant__ Sum<T> sum) {
  constexpr int kDepth = kCount == 0 ? kTreeDepth : kCount < 4 ? 2 : kCount < 8 ? 3 : 4;
  const int count = kCount == 0 ? sum.count : kCount;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < sum.elements; i += stride) {
    T waiting[kDepth];
    int depth = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      T node = sum.inputs[k][i];
#pragma unroll
      for (int bits = k; (bits & 1) != 0; bits >>= 1) node = add(waiting[--depth], node);
      waiting[depth++] = node;
    }
#pragma unroll
    for (int left = kDepth; left > 1; --left) {
      if (left <= depth) waiting[left - 2] = add(waiting[left - 2], waiting[left - 1]);
    }
    sum.output[i] = sum.divisor == 1 ? waiting[0] : divide(waiting[0], sum.divisor);
  }
}

template <class T>
cudaError_t launch(const std::vector<const void*>& inputs, void* output, std::size_t elements, std::int64_t divisor,
                   cudaStream_t stream) {
  static_assert(sizeof(Sum<T>) <= 4096);
  Sum<T> sum;
  sum.count = static_cast<int>(inputs.size());
  sum.output = static_cast<T*>(output);
  sum.elements = elements;
  sum.divisor = divisor;
  for (std::size_t k = 0; k < inputs.size(); ++k) sum.inputs[k] = static_cast<const T*>(inputs[k]);
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (elements + kThreads - 1) / kThreads));
  switch (sum.count) {
    case 2: walk<T, 2><<<blocks, kThreads, 0, stream>>>(sum); break;
    case 4: walk<T, 4><<<blocks, kThreads, 0, stream>>>(sum); break;
    case 8: walk<T, 8><<<blocks, kThreads, 0, stream>>>(sum); break;
    default: walk<T, 0><<<blocks, kThreads, 0, stream>>>(sum); break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t tree_sum(Dtype dtype, const std::vector<const void*>& inputs, void* output, std::size_t elements,
                     std::int64_t divisor, cudaStream_t stream) {
  if (inputs.empty() || inputs.size() > kMostInputs) return cudaErrorInvalidValue;
  if (elements == 0) return cudaSuccess;
  switch (dtype) {
    case Dtype::Bool: return cudaErrorInvalidValue;
    case Dtype::UInt8:
    case Dtype::Int8: return launch<std::uint8_t>(inputs, output, elements, divisor, stream);
    case Dtype::Int16: return launch<std::uint16_t>(inputs, output, elements, divisor, stream);
    case Dtype::Int32: return launch<std::uint32_t>(inputs, output, elements, divisor, stream);
    case Dtype::Int64: return launch<std::uint64_t>(inputs, output, elements, divisor, stream);
    case Dtype::Float16: return launch<__half>(inputs, output, elements, divisor, stream);
    case Dtype::BFloat16: return launch<__nv_bfloat16>(inputs, output, elements, divisor, stream);
    case Dtype::Float32: return launch<float>(inputs, output, elements, divisor, stream);
    case Dtype::Float64: return launch<double>(inputs, output, elements, divisor, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace lockstep::nccl
