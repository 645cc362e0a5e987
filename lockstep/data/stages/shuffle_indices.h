#pragma once

#include <cstdint>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// As many numbers of a shuffle's buffer are part of a saved position; larger buffers are filled again.
inline constexpr std::int64_t kMostStoredNumbers = 65'536;

/// The numbers of `input` through a shuffle's buffer. A position is found again without drawing all that came before it.
IndexIteratorPtr shuffle_indices(IndexIteratorPtr input, std::uint64_t key, std::int64_t capacity);

}  // namespace lockstep::data
