#pragma once

#include <cstdint>

namespace lockstep::data {

/// The splitmix64 step: every bit of the result depends on every bit of `x`.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(mix(a) ^ b); }

/// Random numbers from a key: number i of a key is the same on every machine and thread.
class RandomStream {
 public:
  explicit constexpr RandomStream(std::uint64_t key) : state_(mix(key)) {}

  /// The next number: 64 random bits.
  constexpr std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    return mix(state_);
  }

  /// Uniform in [0, bound), without bias; `bound` at least 1.
  constexpr std::uint64_t below(std::uint64_t bound) {
    // Lemire's method: the high half of a product; rejects a low half in the short first part of the range.
    Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = -bound % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  /// The generator's state, to continue its numbers elsewhere.
  constexpr std::uint64_t state() const { return state_; }
  constexpr void set_state(std::uint64_t state) { state_ = state; }

  /// Uniform in [0, 1), with 53 random bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  __extension__ using Wide = unsigned __int128;

  std::uint64_t state_;
};

}  // namespace lockstep::data
