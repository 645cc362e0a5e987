#pragma once

#include <cstdint>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// A saved position stores up to this many numbers of a shuffle's buffer; larger buffers are refilled.
inline constexpr std::int64_t kMostStoredNumbers = 65'536;

/// Passes the numbers of `input` through a shuffle's buffer. Restores a position without repeating all earlier draws.
IndexIteratorPtr shuffle_indices(IndexIteratorPtr input, std::uint64_t key, std::int64_t capacity);

}  // namespace lockstep::data
