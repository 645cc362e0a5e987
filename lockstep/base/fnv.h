#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// FNV-1a. Equal on all machines, unlike std::hash.
template <class T>
std::uint64_t fnv1a(std::span<const T> values, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (const std::byte byte : std::as_bytes(values)) hash = (hash ^ std::to_integer<unsigned>(byte)) * 0x100000001b3U;
  return hash;
}

}  // namespace lockstep
