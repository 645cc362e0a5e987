#include "lockstep/strategy/kernels/shared_product.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "lockstep/strategy/kernels/product_tile_avx512.h"

namespace lockstep::kernels {
namespace {

// What is packed at a time.
constexpr std::int64_t kPanelRows = 2048;
constexpr std::int64_t kPanelInner = 2048;
constexpr std::int64_t kPanelColumns = 2064;

// What a member computes at a time. A tile's share of the left operand stays in the first-level cache.
constexpr std::int64_t kBlockRows = 128;
constexpr std::int64_t kBlockInner = 1024;
constexpr std::int64_t kBlockColumns = 96;

/// Lines that a member packs at a time: whole groups of every tile.
constexpr std::int64_t kPackedLines = 48;

constexpr std::int64_t rounded_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }
constexpr std::int64_t parts(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

/// Pieces of work: a run of neighbours for every member, who then takes those that others have not begun.
class Pieces {
 public:
  Pieces(std::int64_t count, int members) : shares_(std::min(members, kMostShares)) {
    for (int k = 0; k < shares_; ++k) {
      share_[k].next.store(count * k / shares_, std::memory_order_relaxed);
      share_[k].end = count * (k + 1) / shares_;
    }
  }

  template <class F>
  void take(int member, F&& work) {
    for (int k = 0; k < shares_; ++k) {
      Share& share = share_[static_cast<std::size_t>((member + k) % shares_)];
      for (std::int64_t piece = share.next++; piece < share.end; piece = share.next++) work(piece);
    }
  }

 private:
  struct alignas(64) Share {
    std::atomic<std::int64_t> next = 0;
    std::int64_t end = 0;
  };
  static constexpr int kMostShares = 128;
  int shares_;
  std::array<Share, kMostShares> share_;
};

/// One panel of c from one panel of each operand, which begin at `a`, `b` and `c`.
class Panel {
 public:
  Panel(const ProductTile& tile, const ProductSizes& sizes, MatrixView a, MatrixView b, float* c, std::int64_t c_stride,
        float* scratch)
      : tile_(tile),
        sizes_(sizes),
        a_(a),
        b_(b),
        c_(c),
        c_stride_(c_stride),
        left_(scratch),
        right_(scratch + rounded_up(sizes.rows, tile.rows) * sizes.inner) {}

  /// `row` is where c begins; without it c begins as it is if `add`, and at zero otherwise.
  void compute(const float* row, bool add, const Team& team) {
    const std::int64_t row_packs = parts(sizes_.rows, kPackedLines), column_packs = parts(sizes_.columns, kPackedLines);
    Pieces packs(row_packs + column_packs, team.size);
    team.run([&](int member) {
      packs.take(member, [&](std::int64_t k) { k < column_packs ? pack_columns(k) : pack_rows(k - column_packs); });
    });

    const std::int64_t down = parts(sizes_.rows, kBlockRows), across = parts(sizes_.columns, kBlockColumns);
    Pieces blocks(down * across, team.size);
    team.run([&](int member) {
      blocks.take(member, [&](std::int64_t k) { multiply(k % down * kBlockRows, k / down * kBlockColumns, row, add); });
    });
  }

 private:
  void pack_rows(std::int64_t pack) const {
    const std::int64_t first = pack * kPackedLines;
    tile_.pack_rows(a_.data + first * a_.row_stride, a_.row_stride, a_.column_stride,
                    std::min(kPackedLines, sizes_.rows - first), sizes_.inner, left_ + first * sizes_.inner);
  }

  void pack_columns(std::int64_t pack) const {
    const std::int64_t first = pack * kPackedLines;
    tile_.pack_columns(b_.data + first * b_.column_stride, b_.column_stride, b_.row_stride,
                       std::min(kPackedLines, sizes_.columns - first), sizes_.inner, right_ + first * sizes_.inner);
  }

  void multiply(std::int64_t top, std::int64_t begin, const float* row, bool add) const {
    const std::int64_t bottom = std::min(sizes_.rows, top + kBlockRows),
                       end = std::min(sizes_.columns, begin + kBlockColumns);
    if (row != nullptr) {
      for (std::int64_t i = top; i < bottom; ++i) std::copy(row + begin, row + end, c_ + i * c_stride_ + begin);
    }
    for (std::int64_t k = 0; k < sizes_.inner; k += kBlockInner) {
      const std::int64_t depth = std::min(kBlockInner, sizes_.inner - k);
      for (std::int64_t j = begin; j < end; j += tile_.columns) {
        for (std::int64_t i = top; i < bottom; i += tile_.rows)
          multiply_tile(i, j, std::min(tile_.rows, bottom - i), std::min(tile_.columns, end - j), k, depth,
                        add || row != nullptr || k > 0);
      }
    }
  }

  void multiply_tile(std::int64_t i, std::int64_t j, std::int64_t height, std::int64_t width, std::int64_t k,
                     std::int64_t depth, bool add) const {
    const float* const left = left_ + i * sizes_.inner + k * tile_.rows;
    const float* const right = right_ + j * sizes_.inner + k * tile_.columns;
    float* const tile = c_ + i * c_stride_ + j;
    if (height == tile_.rows && width == tile_.columns) return tile_.multiply(left, right, depth, tile, c_stride_, add);

    std::array<float, 8 * 48> whole = {};  // c ends inside of this tile
    for (std::int64_t r = 0; add && r < height; ++r)
      std::copy_n(tile + r * c_stride_, width, whole.data() + r * tile_.columns);
    tile_.multiply(left, right, depth, whole.data(), tile_.columns, /*add=*/true);
    for (std::int64_t r = 0; r < height; ++r)
      std::copy_n(whole.data() + r * tile_.columns, width, tile + r * c_stride_);
  }

  const ProductTile& tile_;
  const ProductSizes sizes_;
  const MatrixView a_, b_;
  float* const c_;
  const std::int64_t c_stride_;
  float *const left_, *const right_;
};

}  // namespace

const ProductTile* avx512_tile() {
#if defined(__x86_64__)
  static const bool here = __builtin_cpu_supports("avx512f") != 0;
  return here ? &kAvx512Tile : nullptr;
#else
  return nullptr;
#endif
}

std::int64_t shared_product_scratch(const ProductTile& tile, const ProductSizes& sizes) {
  return (rounded_up(std::min(sizes.rows, kPanelRows), tile.rows) +
          rounded_up(std::min(sizes.columns, kPanelColumns), tile.columns)) *
         std::min(sizes.inner, kPanelInner);
}

void shared_product(const ProductTile& tile, const ProductSizes& sizes, MatrixView a, MatrixView b, const float* row,
                    float* c, std::int64_t c_stride, float* scratch, const Team& team) {
  if (sizes.inner == 0) {
    for (std::int64_t i = 0; i < sizes.rows; ++i) {
      row != nullptr ? std::copy_n(row, sizes.columns, c + i * c_stride)
                     : std::fill_n(c + i * c_stride, sizes.columns, 0.0F);
    }
    return;
  }
  for (std::int64_t j = 0; j < sizes.columns; j += kPanelColumns) {
    for (std::int64_t k = 0; k < sizes.inner; k += kPanelInner) {
      for (std::int64_t i = 0; i < sizes.rows; i += kPanelRows) {
        const ProductSizes part{.rows = std::min(kPanelRows, sizes.rows - i),
                                .inner = std::min(kPanelInner, sizes.inner - k),
                                .columns = std::min(kPanelColumns, sizes.columns - j)};
        Panel panel(tile, part, {a.data + i * a.row_stride + k * a.column_stride, a.row_stride, a.column_stride},
                    {b.data + k * b.row_stride + j * b.column_stride, b.row_stride, b.column_stride},
                    c + i * c_stride + j, c_stride, scratch);
        panel.compute(k == 0 && row != nullptr ? row + j : nullptr, /*add=*/k > 0, team);
      }
    }
  }
}

}  // namespace lockstep::kernels
