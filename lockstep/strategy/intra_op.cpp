#include "lockstep/strategy/intra_op.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

namespace lockstep {

void for_ranges(const at::Tensor& flat, std::int64_t grain, FunctionRef<void(std::int64_t begin, std::int64_t end)> work) {
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

}  // namespace lockstep
