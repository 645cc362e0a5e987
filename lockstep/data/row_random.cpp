#include "lockstep/data/row_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numbers>

#include "lockstep/data/errors.h"

namespace lockstep::data {

double RowRandom::normal() {
  // Box and Muller; 1 - u lies in (0, 1], where the logarithm is finite.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - stream_.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * stream_.uniform());
}

std::int64_t RowRandom::below(std::int64_t bound) {
  if (bound < 1)
    refuse_option("RowRandom::below", str("the bound must be >= 1, got ", bound),
                  "below(n) gives numbers from 0 to n - 1");
  return static_cast<std::int64_t>(stream_.below(static_cast<std::uint64_t>(bound)));
}

at::Generator RowRandom::generator() { return at::detail::createCPUGenerator(stream_.next()); }

}  // namespace lockstep::data
