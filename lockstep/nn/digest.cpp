#include "lockstep/nn/digest.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace lockstep {
namespace {

constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15u;

/// A bijection in which every bit of the input affects every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// A bijection in each argument: a changed word cannot be lost.
std::uint64_t absorb(std::uint64_t lane, std::uint64_t word) {
  const std::uint64_t product = (lane ^ word) * kOdd;
  return product ^ (product >> 32);
}

}  // namespace

std::uint64_t digest_bytes(const void* bytes, std::size_t size) {
  constexpr std::size_t kLanes = 4;  // independent, so that the processor works on all of them at once
  const auto* at = static_cast<const char*>(bytes);
  std::uint64_t lanes[kLanes] = {1, 2, 3, 4};
  std::size_t left = size;
  for (; left >= sizeof lanes; left -= sizeof lanes, at += sizeof lanes) {
    std::uint64_t words[kLanes];
    std::memcpy(words, at, sizeof words);
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = absorb(lanes[i], words[i]);
  }
  for (std::size_t i = 0; left > 0; ++i) {
    const std::size_t take = std::min(left, sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, at, take);
    lanes[i] = absorb(lanes[i], word);
    left -= take;
    at += take;
  }
  std::uint64_t all = mix(size + kOdd);
  for (const std::uint64_t lane : lanes) all = mix(all ^ lane);
  return all;
}

std::uint64_t place_block(std::uint64_t digest_of_block, std::uint64_t block) {
  return mix(digest_of_block ^ mix(block + 1));
}

std::uint64_t combine(const std::vector<TensorDigest>& digests) {
  std::uint64_t all = digests.size();
  for (const auto& digest : digests)
    all = mix(absorb(all, digest_bytes(digest.name.data(), digest.name.size())) ^ digest.value);
  return all;
}

std::optional<DigestDifference> find_difference(const std::vector<const std::vector<TensorDigest>*>& by_replica) {
  struct Holder {
    int replica;
    std::uint64_t value;
  };
  std::vector<std::string> names;  // in order of first appearance
  std::map<std::string, std::vector<Holder>> holders;
  for (std::size_t k = 0; k < by_replica.size(); ++k) {
    for (const auto& digest : *by_replica[k]) {
      auto& of_name = holders[digest.name];
      if (of_name.empty()) names.push_back(digest.name);
      of_name.push_back({static_cast<int>(k), digest.value});
    }
  }
  for (const auto& name : names) {
    const auto& of_name = holders[name];
    const auto votes = [&](const Holder& holder) {
      return std::count_if(of_name.begin(), of_name.end(),
                           [&](const Holder& other) { return other.value == holder.value; });
    };
    const auto right = std::max_element(of_name.begin(), of_name.end(),
                                        [&](const Holder& a, const Holder& b) { return votes(a) < votes(b); });
    for (const auto& holder : of_name) {
      if (holder.value != right->value) return DigestDifference{holder.replica, right->replica, name};
    }
  }
  return {};
}

}  // namespace lockstep
