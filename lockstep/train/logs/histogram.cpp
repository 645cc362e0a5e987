#include "lockstep/train/logs/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::train {
namespace {

/// Ascending; the last is the largest double there is.
const std::vector<double>& limits() {
  static const std::vector<double> all = [] {
    std::vector<double> above;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) above.push_back(limit);
    above.push_back(std::numeric_limits<double>::max());
    std::vector<double> both;
    for (auto limit = above.rbegin(); limit != above.rend(); ++limit) both.push_back(-*limit);
    both.push_back(0);
    both.insert(both.end(), above.begin(), above.end());
    return both;
  }();
  return all;
}

}  // namespace

void Histogram::add(double value) {
  if (!std::isfinite(value)) {
    ++not_finite_;
    return;
  }
  // A bucket holds the values below its limit, so that the largest double belongs to the last one.
  const auto bucket = std::min(std::ranges::upper_bound(limits(), value), limits().end() - 1);
  ++counts_[static_cast<int>(bucket - limits().begin())];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  sum_ += value;
  sum_of_squares_ += value * value;
  ++count_;
}

Histogram::Buckets Histogram::buckets() const {
  Buckets buckets;
  const auto add_bucket = [&](int index, std::int64_t count) {
    buckets.limits.push_back(limits()[static_cast<std::size_t>(index)]);
    buckets.counts.push_back(static_cast<double>(count));
  };
  int next = 0;
  for (const auto& [index, count] : counts_) {
    if (index > next) add_bucket(index - 1, 0);
    add_bucket(index, count);
    next = index + 1;
  }
  if (next < static_cast<int>(limits().size())) add_bucket(static_cast<int>(limits().size()) - 1, 0);
  return buckets;
}

}  // namespace lockstep::train
