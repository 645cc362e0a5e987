#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/base/function_ref.h"

namespace lockstep {

/// The least work per thread that LibTorch's own element-wise operations give.
inline constexpr std::int64_t kElementwiseGrain = 32'768;

/// Calls `work(begin, end)` for ranges that together are the elements of `flat`, a contiguous tensor of one dimension,
/// on the calling thread's share of LibTorch's intra-op threads. A range has at least `grain` elements unless it is the
/// only or the last one. `flat` only counts: its memory is not touched.
///
/// at::parallel_for does not do: it is a template, and runs one range after the other where it is compiled without the
/// OpenMP that LibTorch was built with. The loop of TensorIterator is compiled into LibTorch.
void for_ranges(const at::Tensor& flat, std::int64_t grain,
                FunctionRef<void(std::int64_t begin, std::int64_t end)> work);

/// While it lives LibTorch's element-wise operations on the calling thread are not shared out.
///
/// LibTorch cuts large tensors into one range per thread, wherever that falls, and its kernels for 16-bit types round
/// differently at the end of a range (on x86_64): their bits depend on the number of threads. at::set_num_threads is no
/// way out, it stops and starts a pool that all threads share.
class OneIntraOpThread {
 public:
  OneIntraOpThread();
  ~OneIntraOpThread();
  OneIntraOpThread(const OneIntraOpThread&) = delete;
  OneIntraOpThread& operator=(const OneIntraOpThread&) = delete;

 private:
  int before_ = 0;  ///< 0: LibTorch does not use OpenMP here, or there was one thread anyway
};

}  // namespace lockstep
