#pragma once

#include "lockstep/nn/product_tile.h"

namespace lockstep::nn {

/// Only on x86_64, and to be used only where avx512_tile() says so.
extern const ProductTile kAvx512Tile;

}  // namespace lockstep::nn
