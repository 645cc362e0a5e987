#include "lockstep/nn/cuda/segment_kernels.h"

#include "lockstep/nn/cuda/segment_table.cuh"

namespace lockstep::gpu {
namespace {

constexpr int kWidth = 4;      // elements that a thread loads at once
constexpr int kTreeDepth = 7;  // of 64 replicas

template <int kN>
__device__ void load(const float* from, float (&into)[kN]) {
  if constexpr (kN == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    into[0] = four.x, into[1] = four.y, into[2] = four.z, into[3] = four.w;
  } else {
    into[0] = *from;
  }
}

template <int kN>
__device__ void store(const float (&from)[kN], float* into) {
  if constexpr (kN == 4) {
    *reinterpret_cast<float4*>(into) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
    *into = from[0];
  }
}

/// The tree T(0, R): complete pairs of neighbours are added as soon as both are there, like the carries of a counter.
template <int kReplicas, int kN>
__device__ void add_up(const Table& table, float* const* row, std::int64_t at, float (&sum)[kN]) {
  constexpr int kDepth = kReplicas == 0 ? kTreeDepth : kReplicas < 3 ? 2 : kReplicas < 5 ? 3 : 4;
  const int replicas = kReplicas == 0 ? table.replicas : kReplicas;
  float waiting[kDepth][kN];
  int depth = 0;
#pragma unroll
  for (int k = 0; k < replicas; ++k) {
    float node[kN] = {};
    if (row[kStates + k] != nullptr) load(row[kStates + k] + at, node);
#pragma unroll
    for (int bits = k; (bits & 1) != 0; bits >>= 1) {
      --depth;
      for (int i = 0; i < kN; ++i) node[i] = waiting[depth][i] + node[i];
    }
    for (int i = 0; i < kN; ++i) waiting[depth][i] = node[i];
    ++depth;
  }
#pragma unroll
  for (int left = kDepth; left > 1; --left) {
    if (left > depth) continue;
    for (int i = 0; i < kN; ++i) waiting[left - 2][i] = waiting[left - 2][i] + waiting[left - 1][i];
  }
  for (int i = 0; i < kN; ++i) sum[i] = table.divisor == 1.0f ? waiting[0][i] : waiting[0][i] / table.divisor;
}

// What is done with a sum. `begin(row)` is called first, by all threads of a block; false: nothing is done with this row.
struct Keep {
  __device__ bool begin(int) { return true; }
  template <int kN>
  __device__ void operator()(float* const* row, std::int64_t at, const float (&sum)[kN]) const {
    store(sum, row[0] + at);
  }
};

struct Sgd {
  const SgdStep* steps;
  SgdStep step;

  __device__ bool begin(int row) {
    step = steps[row];
    return !step.skip;
  }
  template <int kN>
  __device__ void operator()(float* const* row, std::int64_t at, const float (&sum)[kN]) const {
    float weights[kN], buffer[kN] = {};
    load(row[0] + at, weights);
    if (row[1] != nullptr && !step.first_step) load(row[1] + at, buffer);
    for (int i = 0; i < kN; ++i) {
      const float slope = step.weight_decay != 0 ? fmaf(weights[i], step.weight_decay, sum[i]) : sum[i];
      float change = slope;
      if (row[1] != nullptr) {
        buffer[i] = step.first_step ? slope : fmaf(slope, step.one_less_dampening, buffer[i] * step.momentum);
        change = step.nesterov ? fmaf(buffer[i], step.momentum, slope) : buffer[i];
      }
      weights[i] = fmaf(change, -step.learning_rate, weights[i]);
    }
    if (row[1] != nullptr) store(buffer, row[1] + at);
    store(weights, row[0] + at);
  }
};

struct Adam {
  const AdamStep* steps;
  AdamStep step;

  __device__ bool begin(int row) {
    step = steps[row];
    return !step.skip;
  }
  template <int kN>
  __device__ void operator()(float* const* row, std::int64_t at, const float (&sum)[kN]) const {
    float weights[kN], mean[kN], square[kN];
    load(row[0] + at, weights);
    load(row[1] + at, mean);
    load(row[2] + at, square);
    for (int i = 0; i < kN; ++i) {
      if (step.keep_of_weights != 1.0f) weights[i] = weights[i] * step.keep_of_weights;
      const float slope = step.weight_decay != 0 ? fmaf(weights[i], step.weight_decay, sum[i]) : sum[i];
      mean[i] = fmaf(slope, step.one_less_beta1, mean[i] * step.beta1);
      square[i] = fmaf(step.one_less_beta2, slope * slope, square[i] * step.beta2);
      const float root = sqrtf(square[i]) * step.one_over_root_of_bias2 + step.eps;
      weights[i] = fmaf(-step.step_size, mean[i] / root, weights[i]);
    }
    store(mean, row[1] + at);
    store(square, row[2] + at);
    store(weights, row[0] + at);
  }
};

/// The first column holds the parameter's number in the place of a pointer; the lowest bits are left for the test of alignment.
constexpr int kBitsOfAlignment = 4;

struct FindBad {
  int replicas;  ///< that may be named
  BadSum* bad;

  __device__ bool begin(int) { return true; }
  template <int kN>
  __device__ void operator()(float* const* row, std::int64_t at, const float (&sum)[kN]) const {
    for (int i = 0; i < kN; ++i) {
      if (isfinite(sum[i])) continue;
      int replica = kNoReplica;
      for (int k = replicas - 1; k >= 0; --k) {
        if (row[kStates + k] != nullptr && !isfinite(row[kStates + k][at + i])) replica = k;
      }
      const BadSum parameter = reinterpret_cast<std::uintptr_t>(row[0]) >> kBitsOfAlignment;
      atomicMin(bad, parameter << 8 | static_cast<BadSum>(replica));
    }
  }
};

template <int kReplicas, class Use>
__global__ void __launch_bounds__(kThreads) walk(const __grid_constant__ Table table, const int first_row, Use use) {
  const int row_index = row_of(table, static_cast<int>(blockIdx.x));
  if (!use.begin(first_row + row_index)) return;
  float* const* const row = table.pointers + row_index * (kStates + table.replicas);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - table.first_chunk[row_index]) * kChunk;
  const std::int64_t end = min(begin + kChunk, table.elements[row_index]);
  std::uintptr_t bits = 0;
  for (int k = 0; k < kStates + table.replicas; ++k) bits |= reinterpret_cast<std::uintptr_t>(row[k]);
  std::int64_t scalar_from = begin;
  if (bits % (kWidth * sizeof(float)) == 0) {
    scalar_from = begin + (end - begin) / kWidth * kWidth;
    for (std::int64_t at = begin + threadIdx.x * kWidth; at < scalar_from; at += kThreads * kWidth) {
      float sum[kWidth];
      add_up<kReplicas>(table, row, at, sum);
      use(row, at, sum);
    }
  }
  for (std::int64_t at = scalar_from + threadIdx.x; at < end; at += kThreads) {
    float sum[1];
    add_up<kReplicas>(table, row, at, sum);
    use(row, at, sum);
  }
}

template <class Use>
void launch(const Table& table, int first_row, const Use& use, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(table.first_chunk[table.rows]);
  switch (table.replicas) {
    case 1: walk<1><<<chunks, kThreads, 0, stream>>>(table, first_row, use); break;
    case 2: walk<2><<<chunks, kThreads, 0, stream>>>(table, first_row, use); break;
    case 4: walk<4><<<chunks, kThreads, 0, stream>>>(table, first_row, use); break;
    case 8: walk<8><<<chunks, kThreads, 0, stream>>>(table, first_row, use); break;
    default: walk<0><<<chunks, kThreads, 0, stream>>>(table, first_row, use); break;
  }
}

template <class Use>
cudaError_t for_each(const Segments& segments, int replicas, std::int64_t divisor, const Use& use,
                     cudaStream_t stream) {
  static_assert(sizeof(Table) + sizeof(int) + sizeof(Use) <= 4096);
  const auto fill = [&](std::size_t i, float** row) {
    row[0] = segments[i].target;
    row[1] = segments[i].first_state;
    row[2] = segments[i].second_state;
    for (int k = 0; k < replicas; ++k) row[kStates + k] = const_cast<float*>(segments[i].gradients[k]);
  };
  int first_row = 0;
  return for_each_table(segments, replicas, divisor, fill, [&](const Table& table) {
    launch(table, first_row, use, stream);
    first_row += table.rows;
  });
}

}  // namespace

cudaError_t sum_segments(const Segments& segments, int replicas, std::int64_t divisor, cudaStream_t stream) {
  return for_each(segments, replicas, divisor, Keep{}, stream);
}

cudaError_t update_sgd(const Segments& segments, int replicas, std::int64_t divisor, const SgdStep* steps,
                       cudaStream_t stream) {
  return for_each(segments, replicas, divisor, Sgd{steps, {}}, stream);
}

cudaError_t update_adam(const Segments& segments, int replicas, std::int64_t divisor, const AdamStep* steps,
                        cudaStream_t stream) {
  return for_each(segments, replicas, divisor, Adam{steps, {}}, stream);
}

cudaError_t find_bad_sum(const Segments& segments, const std::vector<int>& parameters, int replicas, bool are_sums,
                         BadSum* bad, cudaStream_t stream) {
  static_assert(kAllFinite == ~0ULL);  // all bytes are 0xff
  if (const cudaError_t failed = cudaMemsetAsync(bad, 0xff, sizeof(BadSum), stream)) return failed;
  Segments numbered = segments;
  for (std::size_t i = 0; i < numbered.size(); ++i) {
    const auto number = static_cast<std::uintptr_t>(parameters[i]) << kBitsOfAlignment;
    numbered[i].target = reinterpret_cast<float*>(number);
  }
  return for_each(numbered, replicas, 1, FindBad{are_sums ? 0 : replicas, bad}, stream);
}

}  // namespace lockstep::gpu
