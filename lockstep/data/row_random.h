#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include "lockstep/base/export.h"
#include "lockstep/data/random_key.h"

namespace lockstep::data {

/// Random numbers of one row, for augmentation: they depend on seed, pass and row, and not on which thread computes
/// the row or how many there are.
///
///     dataset.map_with_random([](Digits d, RowRandom& random) {
///       if (random.uniform() < 0.5) d.image = d.image.flip(-1);
///       return d;
///     }, {.parallel_calls = 4})
class LOCKSTEP_EXPORT RowRandom {
 public:
  explicit RowRandom(std::uint64_t key) : stream_(key) {}

  double uniform() { return stream_.uniform(); }  ///< in [0, 1)
  double uniform(double low, double high) { return low + (high - low) * stream_.uniform(); }
  double normal();                                                     ///< mean 0, standard deviation 1
  std::int64_t below(std::int64_t bound);                              ///< 0 to bound - 1
  bool chance(double probability) { return uniform() < probability; }  ///< true as often as `probability` says
  /// A generator for LibTorch's own functions: `at::randn({3}, random.generator())`.
  at::Generator generator();

 private:
  RandomStream stream_;
};

}  // namespace lockstep::data
