#pragma once

#include "lockstep/strategy/kernels/product_tile.h"

namespace lockstep::kernels {

/// Only on x86_64, and to be used only where avx512_tile() says so.
extern const ProductTile kAvx512Tile;

}  // namespace lockstep::kernels
