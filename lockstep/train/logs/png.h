#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/export.h"

namespace lockstep::train {

/// Pixels, row by row, each with `channels` bytes: 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
struct Image {
  int height = 0, width = 0, channels = 3;  ///< size in pixels, bytes per pixel
  std::span<const std::uint8_t> pixels;     ///< row by row
};

/// The image as a PNG file. InvalidArgument unless it has pixels, as many as its size says.
LOCKSTEP_EXPORT std::string png_of(const Image& image);

}  // namespace lockstep::train
