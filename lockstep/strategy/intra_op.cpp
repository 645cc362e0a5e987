#include "lockstep/strategy/intra_op.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <dlfcn.h>

namespace lockstep {
namespace {

/// The OpenMP that LibTorch has loaded, if any; this library is not linked to one. Its numbers of threads are per
/// thread.
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

const OpenMp& open_mp() {
  static const OpenMp found;
  return found;
}

}  // namespace

void for_ranges(const at::Tensor& flat, std::int64_t grain,
                FunctionRef<void(std::int64_t begin, std::int64_t end)> work) {
  const std::int64_t count = flat.numel();
  if (count == 0) return;
  if (count <= grain || at::get_num_threads() == 1) return work(0, count);
  auto loop = at::TensorIterator::borrowing_nullary_op(flat);
  const auto* first = static_cast<const char*>(flat.const_data_ptr());
  const auto width = static_cast<std::int64_t>(flat.element_size());
  loop.for_each(
      [&](char** data, const std::int64_t*, std::int64_t size, std::int64_t) {
        const std::int64_t begin = (data[0] - first) / width;
        work(begin, begin + size);
      },
      grain);
}

OneIntraOpThread::OneIntraOpThread() {
  const OpenMp& threads = open_mp();
  if (threads.max_threads == nullptr || threads.set_threads == nullptr || at::get_num_threads() == 1) return;
  before_ = threads.max_threads();
  threads.set_threads(1);
}

OneIntraOpThread::~OneIntraOpThread() {
  if (before_ > 0) open_mp().set_threads(before_);
}

}  // namespace lockstep
