#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/collective.h"

namespace lockstep::engine {

/// A worker's description of a collective before any data is used: the first message of each, to every other worker,
/// followed by the data of a small one. It contains the beginning of the name, so that an error can show what every
/// worker was doing without another round.
struct Fingerprint {
  static constexpr std::size_t kShapeSize = 8;
  static constexpr std::size_t kNameSize = 96;

  std::uint64_t sequence;  ///< number of this collective in its channel
  std::uint64_t elements;
  std::uint64_t counts_hash;  ///< hash of the elements per worker
  std::uint64_t shape_hash;
  std::uint64_t name_hash;  ///< hash of the whole name
  std::int64_t shape[kShapeSize];
  std::int32_t root;
  std::uint8_t kind;
  std::uint8_t dtype;
  std::uint8_t reduce;
  std::uint8_t implementation;
  std::uint8_t shape_size;  ///< may exceed the array
  char name[kNameSize];
  std::uint8_t unused[7];

  bool operator==(const Fingerprint&) const = default;
};
static_assert(sizeof(Fingerprint) == 216 && std::has_unique_object_representations_v<Fingerprint>);

Fingerprint fingerprint_of(const Collective& collective, std::uint64_t sequence);

/// `all-reduce SUM of float32 [3, 4] "conv1/kernel"`
std::string describe(const Fingerprint& fingerprint);

/// The same text on every worker: what the workers called, grouped, and which worker disagrees with most others. `what`
/// is empty if all are equal.
ErrorText compare(const std::vector<Fingerprint>& of_workers, int channel);

}  // namespace lockstep::engine
