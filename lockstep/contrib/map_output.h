#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/contrib/tower_values.h"

namespace lockstep::contrib {

/// What `map` has computed on one device: the results of its items, in their order.
template <class T>
class MapOutput {
 public:
  MapOutput() = default;
  explicit MapOutput(std::vector<T> items) : items_(std::move(items)) {}
  const std::vector<T>& get() const { return items_; }
  void add(T item) { items_.push_back(std::move(item)); }

 private:
  std::vector<T> items_;
};

namespace detail {

LOCKSTEP_EXPORT void append_empty_tensors(std::size_t count, std::vector<at::Tensor>& tensors);

/// The outputs of all towers that had items, in tower order. All workers must call it.
template <class T>
std::vector<MapOutput<T>> all_outputs(const Strategy& core, const PerReplica<MapOutput<T>>& mine) {
  std::vector<MapOutput<T>> all(mine.begin(), mine.end());
  if (core.num_workers() > 1) {
    // Towers have different numbers of items, and some none: lists are padded to the longest.
    std::vector<std::int64_t> counts, tensors_of_item;
    const T* sample = nullptr;
    for (const auto& output : mine) {
      counts.push_back(static_cast<std::int64_t>(output.get().size()));
      if (sample == nullptr && !output.get().empty()) sample = &output.get()[0];
    }
    std::vector<at::Tensor> tensors;
    if (sample != nullptr) append_tensors(flatten_reducible(*sample), tensors);
    tensors_of_item.assign(counts.size(), static_cast<std::int64_t>(tensors.size()));
    counts = all_towers(core, counts);
    tensors_of_item = all_towers(core, tensors_of_item);
    const auto longest = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
    const auto each = static_cast<std::size_t>(*std::max_element(tensors_of_item.begin(), tensors_of_item.end()));
    tensors.clear();
    for (const auto& output : mine) {
      for (const T& item : output.get()) append_tensors(flatten_reducible(item), tensors);
      append_empty_tensors((longest - output.get().size()) * each, tensors);
    }
    tensors = all_towers(core, tensors);
    const T like = sample != nullptr ? *sample : T{};
    const auto leaves = flatten_reducible(like);
    all.assign(counts.size(), {});
    for (std::size_t tower = 0; tower < counts.size(); ++tower) {
      std::size_t next = tower * longest * each;
      for (std::int64_t i = 0; i < counts[tower]; ++i)
        all[tower].add(unflatten_reducible(like, take_leaves(leaves, tensors, next)));
    }
  }
  std::erase_if(all, [](const MapOutput<T>& output) { return output.get().empty(); });
  return all;
}

}  // namespace detail
}  // namespace lockstep::contrib
