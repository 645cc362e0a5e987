#include "lockstep/data/distribute/separate_replicas.h"

#include <algorithm>
#include <vector>

#include "lockstep/data/own_tensor.h"

namespace lockstep::data {
namespace {

/// The memory that a replica's tensor reaches into, gaps included.
struct Reach {
  const char* begin;
  const char* end;
  std::size_t replica;
  at::Tensor* tensor;
  bool shared = false;
};

Reach reach_of(at::Tensor& tensor, std::size_t replica) {
  std::int64_t elements = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + elements * tensor.element_size(), replica, &tensor};
}

/// Marks what reaches into memory of another replica.
void mark_shared(std::vector<Reach>& all) {
  std::ranges::sort(all, {}, &Reach::begin);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && all[j].begin < all[i].end; ++j) {
      if (all[j].replica != all[i].replica) all[i].shared = all[j].shared = true;
    }
  }
}

}  // namespace

void separate_replicas(InputStep& step) {
  std::vector<Reach> all;
  for (std::size_t k = 0; k < step.elements.size(); ++k) {
    if (!step.elements[k]) continue;
    for (Component& component : step.elements[k]->components) {
      auto* tensor = std::get_if<at::Tensor>(&component);
      if (tensor == nullptr || !tensor->defined()) continue;
      if (tensor->layout() != at::kStrided) {
        *tensor = tensor->detach().clone();
        continue;
      }
      *tensor = own_tensor(*tensor);
      if (tensor->numel() > 0) all.push_back(reach_of(*tensor, k));
    }
  }
  mark_shared(all);
  for (const Reach& each : all)
    if (each.shared) *each.tensor = each.tensor->clone();
}

}  // namespace lockstep::data
