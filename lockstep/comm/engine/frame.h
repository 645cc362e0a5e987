#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/collective.h"

namespace lockstep::engine {

/// What a worker sends about a collective before any data is used: the first message of each, to every other worker, with
/// the data of a small one behind it. It holds the beginning of the name, so that an error can show what every worker
/// was doing without asking again.
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
  std::uint8_t shape_size;  ///< may be more than fits
  char name[kNameSize];
  std::uint8_t unused[7];

  bool operator==(const Fingerprint&) const = default;
};
static_assert(sizeof(Fingerprint) == 216 && std::has_unique_object_representations_v<Fingerprint>);

Fingerprint fingerprint_of(const Collective& collective, std::uint64_t sequence);

/// `all-reduce SUM of float32 [3, 4] "conv1/kernel"`
std::string describe(const Fingerprint& fingerprint);

/// The same text on every worker: what the workers called, grouped, and which worker most others disagree with. Empty `what` if
/// all are equal.
ErrorText compare(const std::vector<Fingerprint>& of_workers, int channel);

}  // namespace lockstep::engine
