#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

// Digests tell whether replicas, runs or workers hold the same numbers without moving the numbers themselves.
namespace lockstep {

/// A block of 4,096 elements of a tensor has a digest; a tensor's is made of those of its blocks, each with its place,
/// added up. So several owners can each digest their blocks, and the cuts between them change nothing.
struct TensorDigest {
  std::string name;         ///< name of the tensor
  std::uint64_t value = 0;  ///< its digest

  bool operator==(const TensorDigest&) const = default;
};

/// The digest of `size` bytes; one changed word always changes it.
LOCKSTEP_EXPORT std::uint64_t digest_bytes(const void* bytes, std::size_t size);

/// What block number `block` adds to the digest of its tensor.
LOCKSTEP_EXPORT std::uint64_t place_block(std::uint64_t digest_of_block, std::uint64_t block);

/// Many digests as one number, for logs and for comparing by eye.
LOCKSTEP_EXPORT std::uint64_t combine(const std::vector<TensorDigest>& digests);

/// Who holds something else than the others.
struct DigestDifference {
  int replica = 0;      ///< the one that differs
  int agreed_with = 0;  ///< the first replica that holds what most hold
  std::string name;     ///< name of the tensor

  bool operator==(const DigestDifference&) const = default;
};

/// Compares what replicas hold under the same names; a replica may lack some. What most hold is taken for right, in a
/// tie what the lowest replica holds. Returns the first difference: the first name, the lowest replica.
LOCKSTEP_EXPORT std::optional<DigestDifference> find_difference(
    const std::vector<const std::vector<TensorDigest>*>& by_replica);

}  // namespace lockstep
