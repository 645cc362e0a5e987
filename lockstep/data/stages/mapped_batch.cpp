#include "lockstep/data/stages/mapped_batch.h"

#include <algorithm>

#include "lockstep/data/ordered_workers.h"
#include "lockstep/data/pipeline_thread.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/row_view.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/element_piece.h"

namespace lockstep::data {
namespace {

using Clock = std::chrono::steady_clock;

/// Rows that were computed together: blocks of them, and errors where rows failed.
struct BlockPiece {
  struct Part {
    Element block;
    std::int64_t rows = 0;
    std::exception_ptr error;
  };
  ElementPiece rows;  // what to compute
  std::vector<Part> parts;
  std::size_t taken = 0;
  BufferPool pool{8};
};

class MappedBatchIterator final : public ElementIterator {
 public:
  MappedBatchIterator(std::shared_ptr<const MapStage> map, const IterationContext& context, std::int64_t size,
                      bool drop_remainder, std::string where)
      : map_(std::move(map)),
        size_(size),
        drop_remainder_(drop_remainder),
        where_(std::move(where)),
        piece_size_(size) {
    const IterationContext below = map_->context_below(context);
    pass_key_ = map_->pass_key(context);
    if ((rows_ = map_->input()->row_source()))
      indices_ = map_->input()->make_index_iterator(below);
    else
      input_ = map_->input()->iterate(below);
  }

  bool next(Element& element) override {
    if (!workers_) start();
    std::vector<Element> blocks;
    std::int64_t have = 0;
    while (have < size_) {
      if (current_.rows == 0 && !next_part()) break;
      const std::int64_t wanted = std::min(size_ - have, current_.rows - offset_);
      const bool whole = offset_ == 0 && wanted == current_.rows;
      blocks.push_back(whole ? std::move(current_.block) : slice(current_.block, offset_, offset_ + wanted));
      offset_ += wanted;
      have += wanted;
      if (whole || offset_ == current_.rows) current_ = {};
    }
    if (have == 0 || (drop_remainder_ && have < size_)) return false;
    element = concatenate_batches(std::move(blocks), where_);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    if (workers_) return ElementIterator::skip(count);
    const std::int64_t wanted = skipped_input(count, size_);
    const std::int64_t skipped = rows_ ? indices_->skip(wanted) : input_->skip(wanted);
    row_ += skipped;
    return skipped / size_ + (!drop_remainder_ && skipped % size_ != 0 ? 1 : 0);
  }
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed * size_);
    if (!rows_) input_->locate(consumed * size_, position);
  }
  void restore(Position& position) override {
    row_ = position.pop();
    if (rows_)
      indices_->skip(row_);
    else
      input_->restore(position);
  }

 private:
  void start() {
    const int threads = map_->options().parallel_calls;
    workers_ = std::make_unique<OrderedWorkers<BlockPiece>>(
        threads, 2 * static_cast<std::size_t>(threads),
        WorkerFunctions<BlockPiece>{[this](BlockPiece& piece) { return fill(piece); },
                                    [this](BlockPiece& piece) { compute(piece); },
                                    [] { prepare_pipeline_thread("ls-map"); }});
  }

  /// The next rows, or the error that stands in a row's place: then the rows before it in this batch are lost, as when
  /// rows are stacked one by one.
  bool next_part() {
    while (piece_.taken == piece_.parts.size()) {
      if (!workers_->take(piece_)) return false;
    }
    current_ = std::move(piece_.parts[piece_.taken++]);
    offset_ = 0;
    if (current_.error) std::rethrow_exception(std::exchange(current_, {}).error);
    return true;
  }

  bool fill(BlockPiece& piece) {
    piece.rows.clear();
    piece.rows.first_row = row_;
    // Pieces end with batches where nothing failed, so that one is often a whole batch.
    const std::int64_t wanted = std::min(piece_size_.get(), size_ - row_ % size_);
    if (rows_) {
      piece.rows.indices.resize(static_cast<std::size_t>(wanted));
      piece.rows.indices.resize(indices_->next(piece.rows.indices));
      row_ += static_cast<std::int64_t>(piece.rows.indices.size());
      return !piece.rows.indices.empty();
    }
    for (std::int64_t i = 0; i < wanted; ++i) {
      ElementPiece::Item& item = piece.rows.add();
      try {
        if (input_->next(item.element)) continue;
        --piece.rows.count;
        break;
      } catch (...) {
        item.error = std::current_exception();
      }
    }
    row_ += static_cast<std::int64_t>(piece.rows.count);
    return piece.rows.count > 0;
  }

  void compute(BlockPiece& piece) {
    const auto start = Clock::now();
    piece.parts.clear();
    piece.taken = 0;
    const auto count = static_cast<std::int64_t>(rows_ ? piece.rows.indices.size() : piece.rows.count);
    RowWriter writer(piece.pool, count, where_);
    const auto close_block = [&] {
      if (const std::int64_t rows = writer.size(); rows > 0) piece.parts.push_back({writer.finish(), rows, nullptr});
    };
    Element block;
    try {
      if (rows_) rows_->gather(piece.rows.indices, piece.rows.pool, block);
    } catch (...) {
      piece.parts.push_back({{}, 0, std::current_exception()});
      return;
    }
    Element row;
    for (std::int64_t i = 0; i < count; ++i) {
      try {
        if (rows_) {
          row_view(block, i, row);
        } else {
          ElementPiece::Item& item = piece.rows.items[static_cast<std::size_t>(i)];
          if (item.error) std::rethrow_exception(std::exchange(item.error, nullptr));
          std::swap(row, item.element);
        }
        map_->run(row, pass_key_, piece.rows.first_row + i);
        writer.add(row);
      } catch (...) {
        close_block();
        piece.parts.push_back({{}, 0, std::current_exception()});
      }
    }
    close_block();
    piece_size_.measured(count, Clock::now() - start);
  }

  std::shared_ptr<const MapStage> map_;
  std::int64_t size_;
  bool drop_remainder_;
  std::string where_;
  std::uint64_t pass_key_ = 0;
  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> indices_;
  IteratorPtr input_;
  std::int64_t row_ = 0;
  PieceSize piece_size_;
  BlockPiece piece_;
  BlockPiece::Part current_;
  std::int64_t offset_ = 0;
  std::unique_ptr<OrderedWorkers<BlockPiece>> workers_;  // last: its threads use all of the above
};

}  // namespace

IteratorPtr make_mapped_batch_iterator(std::shared_ptr<const MapStage> map, const IterationContext& context,
                                       std::int64_t size, bool drop_remainder, std::string where) {
  return std::make_unique<MappedBatchIterator>(std::move(map), context, size, drop_remainder, std::move(where));
}

}  // namespace lockstep::data
