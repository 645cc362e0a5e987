#pragma once

#include <utility>
#include <vector>

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

}  // namespace lockstep::contrib
