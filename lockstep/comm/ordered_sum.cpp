#include "lockstep/comm/ordered_sum.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/half.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep {
namespace {

// Work proceeds block by block: the next operation on a block's sum (a partial sum, the division, the copy for another
// output) finds it in the first-level cache.
constexpr std::size_t kBlockBytes = 4096;

// The properties of an element: its format in memory (`Stored`), how many are processed at once (a `Lane`), how lanes
// are added, and for floating types how they are divided.

template <class Float>
struct FloatElement {
  using Stored = Float;
  using Lane = Float;
  using Scale = Float;
  static constexpr std::size_t kLane = 1;
  static Lane add(Lane a, Lane b) { return a + b; }
  static Lane multiply(Lane a, Scale scale) { return a * scale; }
  static Lane divide(Lane a, Scale scale) { return a / scale; }
};

// Signed integers are added as unsigned ones: the same bits, and overflow is defined.
template <class Unsigned>
struct IntElement {
  using Stored = Unsigned;
  using Lane = Unsigned;
  static constexpr std::size_t kLane = 1;
  static Lane add(Lane a, Lane b) { return static_cast<Lane>(a + b); }
};

template <class Format>
struct HalfElement {
  using Stored = std::uint16_t;
  using Lane = detail::Half8;
  using Scale = float;
  static constexpr std::size_t kLane = 8;

  static Lane add(Lane a, Lane b) {
    const auto x = Format::widen(a);
    const auto y = Format::widen(b);
    return Format::narrow({x.a + y.a, x.b + y.b});
  }
  static Lane multiply(Lane a, Scale scale) {
    const auto x = Format::widen(a);
    return Format::narrow({x.a * scale, x.b * scale});
  }
  // A float has enough digits that rounding twice equals rounding once.
  static Lane divide(Lane a, Scale scale) {
    const auto x = Format::widen(a);
    return Format::narrow({x.a / scale, x.b / scale});
  }
};

using Float16Element = HalfElement<detail::Float16Format>;
using BFloat16Element = HalfElement<detail::BFloat16Format>;

template <class Element>
using StoredOf = typename Element::Stored;

template <class Function>
void with_floating_element(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::Float16: return function(Float16Element());
    case Dtype::BFloat16: return function(BFloat16Element());
    case Dtype::Float32: return function(FloatElement<float>());
    case Dtype::Float64: return function(FloatElement<double>());
    default: return;
  }
}

template <class Function>
void with_element(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::UInt8:
    case Dtype::Int8: return function(IntElement<std::uint8_t>());
    case Dtype::Int16: return function(IntElement<std::uint16_t>());
    case Dtype::Int32: return function(IntElement<std::uint32_t>());
    case Dtype::Int64: return function(IntElement<std::uint64_t>());
    default: return with_floating_element(dtype, function);
  }
}

// Calls function(offset, count) for the lanes of n elements; the last may be partly filled.
template <class Element, class Function>
[[gnu::always_inline]] inline void for_each_lane(std::size_t n, const Function& function) {
  constexpr std::size_t kLane = Element::kLane;
  const std::size_t whole = n - n % kLane;
  // A written array is none of the read ones or exactly one of them: no lane depends on another.
#ifndef __clang__  // which vectorises the lanes, not this loop
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < whole; i += kLane) function(i, std::integral_constant<std::size_t, kLane>());
  if (whole < n) function(whole, n - whole);
}

template <class Element, class Count>
[[gnu::always_inline]] inline typename Element::Lane load(const StoredOf<Element>* from, Count count) {
  typename Element::Lane lane{};
  std::memcpy(&lane, from, count * sizeof(*from));
  return lane;
}

template <class Element, class Count>
[[gnu::always_inline]] inline void store(StoredOf<Element>* to, const typename Element::Lane& lane, Count count) {
  std::memcpy(to, &lane, count * sizeof(*to));
}

template <class Element, int lo, int hi, class Count>
[[gnu::always_inline]] inline typename Element::Lane tree_at(const StoredOf<Element>* const* inputs, std::size_t i,
                                                             Count count) {
  if constexpr (hi - lo == 1) {
    return load<Element>(inputs[lo] + i, count);
  } else {
    constexpr int mid = tree_middle(lo, hi);
    return Element::add(tree_at<Element, lo, mid>(inputs, i, count), tree_at<Element, mid, hi>(inputs, i, count));
  }
}

template <class Element, int count>
void sum_in_registers(const void* const* inputs, std::size_t offset, StoredOf<Element>* out, std::size_t n) {
  const StoredOf<Element>* at[count];
  for (int k = 0; k < count; ++k) at[k] = static_cast<const StoredOf<Element>*>(inputs[k]) + offset;
  for_each_lane<Element>(n, [&](std::size_t i, auto filled) {
    store<Element>(out + i, tree_at<Element, 0, count>(at, i, filled), filled);
  });
}

// out[0, n) = the tree over elements [offset, offset + n) of the inputs; n is at most a block. Up to eight inputs are
// added in registers in one pass, more through partial sums.
template <class Element>
void sum_block(const void* const* inputs, int count, std::size_t offset, StoredOf<Element>* out, std::size_t n) {
  using Stored = StoredOf<Element>;
  switch (count) {
    case 1: {
      const auto* from = static_cast<const Stored*>(inputs[0]) + offset;
      if (from != out) std::memcpy(out, from, n * sizeof(Stored));
      return;
    }
    case 2: return sum_in_registers<Element, 2>(inputs, offset, out, n);
    case 3: return sum_in_registers<Element, 3>(inputs, offset, out, n);
    case 4: return sum_in_registers<Element, 4>(inputs, offset, out, n);
    case 5: return sum_in_registers<Element, 5>(inputs, offset, out, n);
    case 6: return sum_in_registers<Element, 6>(inputs, offset, out, n);
    case 7: return sum_in_registers<Element, 7>(inputs, offset, out, n);
    case 8: return sum_in_registers<Element, 8>(inputs, offset, out, n);
    default: break;
  }
  // `out` may be one of the inputs, so it is not written before all of them are read.
  alignas(64) Stored left[kBlockBytes / sizeof(Stored)];
  alignas(64) Stored right[kBlockBytes / sizeof(Stored)];
  const int mid = tree_middle(0, count);
  sum_block<Element>(inputs, mid, offset, left, n);
  sum_block<Element>(inputs + mid, count - mid, offset, right, n);
  const void* const both[] = {left, right};
  sum_in_registers<Element, 2>(both, 0, out, n);
}

template <class Element>
void divide_array(StoredOf<Element>* data, std::size_t n, std::int64_t divisor) {
  using Scale = typename Element::Scale;
  const auto scale = static_cast<Scale>(divisor);
  const auto each = [&](auto function) {
    for_each_lane<Element>(n, [&](std::size_t i, auto filled) {
      store<Element>(data + i, function(load<Element>(data + i, filled)), filled);
    });
  };
  // The reciprocal of a power of two is exact: the product rounds like the quotient, and is faster.
  if (std::has_single_bit(static_cast<std::uint64_t>(divisor))) {
    each([reciprocal = 1 / scale](auto lane) { return Element::multiply(lane, reciprocal); });
  } else {
    each([scale](auto lane) { return Element::divide(lane, scale); });
  }
}

template <class Element>
void sum_arrays(const void* const* inputs, int count, void* const* outputs, int output_count, std::size_t elements,
                [[maybe_unused]] std::int64_t divisor) noexcept {
  using Stored = StoredOf<Element>;
  constexpr std::size_t kBlock = kBlockBytes / sizeof(Stored);
  for (std::size_t offset = 0; offset < elements; offset += kBlock) {
    const std::size_t n = elements - offset < kBlock ? elements - offset : kBlock;
    Stored* const first = static_cast<Stored*>(outputs[0]) + offset;
    sum_block<Element>(inputs, count, offset, first, n);
    if constexpr (requires { typename Element::Scale; }) {
      if (divisor != 1) divide_array<Element>(first, n, divisor);
    }
    for (int k = 1; k < output_count; ++k) {
      Stored* const copy = static_cast<Stored*>(outputs[k]) + offset;
      if (copy != first) std::memcpy(copy, first, n * sizeof(Stored));
    }
  }
}

void check_divisor(Dtype dtype, std::int64_t divisor) {
  if (divisor < 1) {
    throw InvalidArgument(errors::kBadOption, {.what = str("a mean must be over >= 1 values, got ", divisor),
                                               .help = "pass at least one value"});
  }
  if (divisor != 1 && !is_floating(dtype)) {
    throw InvalidArgument(errors::kDtype, {.what = str("the mean of ", to_string(dtype), " values is not an integer"),
                                           .help = "convert with .to(torch::kDouble) before the reduction"});
  }
}

}  // namespace

void check_ordered_sum(Dtype dtype, int count, int output_count, std::int64_t divisor) {
  if (dtype == Dtype::Bool) {
    throw InvalidArgument(errors::kDtype, {.what = "bool tensors have no sum",
                                           .help = "convert with .to(torch::kLong) before the reduction"});
  }
  if (count < 1 || output_count < 1) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("a sum must have >= 1 inputs and outputs, got ", count, " and ", output_count),
                           .help = "pass one value per replica"});
  }
  check_divisor(dtype, divisor);
}

void ordered_sum(Dtype dtype, const void* const* inputs, int count, void* const* outputs, int output_count,
                 std::size_t elements, std::int64_t divisor) {
  check_ordered_sum(dtype, count, output_count, divisor);
  with_element(dtype, [&]<class Element>(Element) {
    sum_arrays<Element>(inputs, count, outputs, output_count, elements, divisor);
  });
}

}  // namespace lockstep
