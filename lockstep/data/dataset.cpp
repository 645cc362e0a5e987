#include "lockstep/data/dataset.h"

// Sources whose types are known: here and not in the header, where every program would compile them.
namespace lockstep::data {

Dataset<at::Tensor> range(std::int64_t stop) { return range(0, stop); }

Dataset<at::Tensor> range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  return Dataset<at::Tensor>(make_range(start, stop, step));
}

Dataset<at::Tensor> from_tensor_slices(const std::vector<at::Tensor>& slices) {
  return from_tensor_slices(stack_slices(slices));
}

Dataset<std::string> from_tensor_slices(std::vector<std::string> values) {
  return from_tensor_slices(Strings(std::move(values)));
}

}  // namespace lockstep::data
