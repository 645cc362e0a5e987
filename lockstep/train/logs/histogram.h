#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::train {

/// Counts values in buckets that grow by a tenth each, those of TensorFlow's summaries: from 1e-12 to 1e20, on both
/// sides of zero.
class LOCKSTEP_EXPORT Histogram {
 public:
  Histogram() = default;
  template <class T>
  explicit Histogram(std::span<const T> values) {
    for (const T value : values) add(static_cast<double>(value));
  }

  /// NaN and infinity are counted apart: they have no bucket, and no sum either.
  void add(double value);

  std::int64_t count() const { return count_; }            ///< finite values
  std::int64_t not_finite() const { return not_finite_; }  ///< left out

  /// The finite values' smallest and largest, their sum and the sum of their squares; 0 without values.
  double min() const { return min_; }
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_of_squares() const { return sum_of_squares_; }

  /// Upper ends and counts. A run of empty buckets is one bucket; there is at least one.
  struct Buckets {
    std::vector<double> limits, counts;  ///< the upper ends, and how many values each bucket has
  };
  /// The buckets that hold all values.
  Buckets buckets() const;

 private:
  std::map<int, std::int64_t> counts_;  ///< by bucket
  std::int64_t count_ = 0, not_finite_ = 0;
  double min_ = 0, max_ = 0, sum_ = 0, sum_of_squares_ = 0;
};

}  // namespace lockstep::train
