#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

// Digests compare the tensors of replicas, runs or workers without moving the tensors.
namespace lockstep {

/// Each block of 4,096 elements of a tensor has a digest; a tensor's digest is the sum of its blocks' digests, each
/// combined with its place. So several owners can each digest their blocks, and cuts between them do not matter.
struct TensorDigest {
  std::string name;         ///< name of the tensor
  std::uint64_t value = 0;  ///< its digest

  bool operator==(const TensorDigest&) const = default;
};

/// The digest of `size` bytes; a single changed word always changes it.
LOCKSTEP_EXPORT std::uint64_t digest_bytes(const void* bytes, std::size_t size);

/// The contribution of block number `block` to its tensor's digest.
LOCKSTEP_EXPORT std::uint64_t place_block(std::uint64_t digest_of_block, std::uint64_t block);

/// Combines many digests into one number, for logs and for comparing by eye.
LOCKSTEP_EXPORT std::uint64_t combine(const std::vector<TensorDigest>& digests);

/// A replica that differs from the others.
struct DigestDifference {
  int replica = 0;      ///< the one that differs
  int agreed_with = 0;  ///< the first replica that holds what most hold
  std::string name;     ///< name of the tensor

  bool operator==(const DigestDifference&) const = default;
};

/// Compares the digests of replicas by name; a replica may lack some. The majority is taken for right, and in a tie the
/// value of the lowest replica. Returns the first difference: the first name, the lowest replica.
LOCKSTEP_EXPORT std::optional<DigestDifference> find_difference(
    const std::vector<const std::vector<TensorDigest>*>& by_replica);

}  // namespace lockstep
