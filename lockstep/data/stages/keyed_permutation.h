#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "lockstep/data/random_key.h"

namespace lockstep::data {

/// A random permutation of the numbers below `size` with random access: number i is computed, not looked up. A Feistel
/// network permutes all numbers of so many bits, fewer than twice as many; results that are too large go through it
/// again.
class KeyedPermutation {
 public:
  KeyedPermutation(std::uint64_t key, std::uint64_t size)
      : size_(size), bits_(size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 0), low_bits_(bits_ / 2) {
    for (std::uint64_t round = 0; round < keys_.size(); ++round) keys_[round] = mix(key, round);
  }

  std::uint64_t size() const { return size_; }

  /// `place` must be below `size`.
  std::uint64_t operator()(std::uint64_t place) const {
    do {
      place = shuffled(place);
    } while (place >= size_);
    return place;
  }

 private:
  static constexpr std::uint64_t lowest(int bits) { return (std::uint64_t{1} << bits) - 1; }

  // Each pair of rounds changes one half by the other, then vice versa.
  std::uint64_t shuffled(std::uint64_t number) const {
    const int high_bits = bits_ - low_bits_;
    std::uint64_t low = number & lowest(low_bits_);
    std::uint64_t high = number >> low_bits_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      high ^= mix(keys_[round] ^ low) & lowest(high_bits);
      low ^= mix(keys_[round + 1] ^ high) & lowest(low_bits_);
    }
    return high << low_bits_ | low;
  }

  std::uint64_t size_;
  int bits_;
  int low_bits_;
  std::array<std::uint64_t, 8> keys_{};
};

}  // namespace lockstep::data
