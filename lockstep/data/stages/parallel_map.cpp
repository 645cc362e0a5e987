#include "lockstep/data/iterators.h"

#include <algorithm>
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/map_work.h"
#include "lockstep/data/stages/pieces.h"

namespace lockstep::data {
namespace {

using Clock = std::chrono::steady_clock;

/// Threads take a few elements at a time from the input, compute them, and put them into a ring in the order of the
/// input. Of rows of a source only the numbers are taken under the lock; a worker gathers its rows itself.
class ParallelMapIterator final : public ElementIterator {
 public:
  ParallelMapIterator(MapWorkPtr map, const Stage& input, const IterationContext& context)
      : map_(std::move(map)),
        pass_key_(map_->pass_key(context)),
        counters_(context.counters),
        source_(input, map_->context_below(context)),
        workers_(map_->options.parallel_calls, 2 * static_cast<std::size_t>(map_->options.parallel_calls) + 2,
                 {[this](ElementPiece& piece) { return source_.fill(piece, size_.get()); },
                  [this](ElementPiece& piece) { compute(piece); }, [] { prepare_pipeline_thread("ls-map"); }},
                 map_->options.ordered ? PieceOrder::AsInput : PieceOrder::AsFinished) {}

  bool next(Element& element) override { return piece_.next_of(workers_, counters_.get(), element); }

  std::int64_t skip(std::int64_t count) override {
    return workers_.have_started() ? ElementIterator::skip(count) : source_.skip(count);
  }

  void locate(std::int64_t consumed, Position& position) const override { source_.locate(consumed, position); }
  void restore(Position& position) override { source_.restore(position); }

 private:
  void compute(ElementPiece& piece) {
    const auto start = Clock::now();
    if (source_.rows()) gather(piece);
    for (std::size_t i = 0; i < piece.count; ++i) {
      Place& item = piece.items[i];
      if (item.error) continue;
      item.set([&](Element& row) { map_->run(row, pass_key_, piece.first_row + static_cast<std::int64_t>(i)); });
    }
    const auto took = Clock::now() - start;
    size_.measured(static_cast<std::int64_t>(piece.count), took);
    if (counters_) counters_->computing_ns.fetch_add(std::chrono::nanoseconds(took).count(), std::memory_order_relaxed);
  }

  void gather(ElementPiece& piece) {
    const GatheredPiece rows(source_.rows(), piece);
    for (std::size_t i = 0; i < piece.indices.size(); ++i)
      piece.add().set([&](Element& row) { rows.give(static_cast<std::int64_t>(i), row); });
  }

  MapWorkPtr map_;
  std::uint64_t pass_key_;
  std::shared_ptr<StageCounters> counters_;
  PieceSource source_;
  PieceSize size_;
  ElementPiece piece_;
  LazyWorkers<ElementPiece> workers_;  // last: its threads use all of the above
};

/// Rows that were computed together: blocks of rows of one form, and errors where rows failed.
struct BlockPiece {
  struct Part {
    std::int64_t rows = 0;
    Place block = {};                            // or an error in place of the rows
    std::optional<RowForm> form = std::nullopt;  // of the block's rows
  };
  ElementPiece rows;  // what to compute
  std::vector<Part> parts;
  std::size_t taken = 0;
  BufferPool pool{8};
};

class MappedBatchIterator final : public ElementIterator {
 public:
  MappedBatchIterator(MapWorkPtr map, const Stage& input, const IterationContext& context, const BatchShape& shape,
                      std::string where)
      : map_(std::move(map)),
        size_(shape.size),
        drop_remainder_(shape.drop_remainder),
        where_(std::move(where)),
        pass_key_(map_->pass_key(context)),
        source_(input, map_->context_below(context)),
        piece_size_(shape.size),
        workers_(map_->options.parallel_calls, 2 * static_cast<std::size_t>(map_->options.parallel_calls),
                 {[this](BlockPiece& piece) { return fill(piece); }, [this](BlockPiece& piece) { compute(piece); },
                  [] { prepare_pipeline_thread("ls-map"); }}) {}

  // As when rows are stacked one by one: the first row that fails, or that differs from the first of its batch, is the
  // one to tell, and the batch fails as a whole, unless it is a remainder that is left out.
  bool next(Element& element) override {
    std::vector<Element> blocks;
    std::optional<RowForm> form;
    std::exception_ptr error;
    std::int64_t have = 0;
    for (BlockPiece::Part part; have < size_ && next_part(part); have += part.rows) {
      if (error) continue;
      if (part.block.error)
        error = part.block.error;
      else if (form && !(*form == *part.form))
        error = std::make_exception_ptr(form->misfit(*part.form, have, where_));
      if (!form) form = std::move(part.form);
      blocks.push_back(std::move(part.block.element));
    }
    const bool is_batch = have > 0 && (!drop_remainder_ || have == size_);
    if (error && (is_batch || concerns_whole_stream(error))) std::rethrow_exception(error);
    if (!is_batch) return false;
    element = concatenate_batches(std::move(blocks), where_);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    if (workers_.have_started()) return ElementIterator::skip(count);
    return batched(source_.skip(skipped_input(count, size_)), size_, drop_remainder_).value();
  }
  void locate(std::int64_t consumed, Position& position) const override {
    source_.locate(skipped_input(consumed, size_), position);
  }
  void restore(Position& position) override { source_.restore(position); }

 private:
  bool next_part(BlockPiece::Part& part) {
    while (piece_.taken == piece_.parts.size()) {
      if (!workers_.take(piece_)) return false;
    }
    part = std::move(piece_.parts[piece_.taken++]);
    return true;
  }

  bool fill(BlockPiece& piece) {
    // Pieces end with batches, so that no row has to be kept for the next one, and one is often a whole batch.
    return source_.fill(piece.rows, std::min(piece_size_.get(), size_ - source_.passed() % size_));
  }

  void compute(BlockPiece& piece) {
    const auto start = Clock::now();
    piece.parts.clear();
    piece.taken = 0;
    const bool gathered = source_.rows() != nullptr;
    const auto count = static_cast<std::int64_t>(gathered ? piece.rows.indices.size() : piece.rows.count);
    RowWriter writer(piece.pool, count, where_);
    const auto fail = [&] { piece.parts.push_back({.rows = 1, .block = {.error = std::current_exception()}}); };
    const auto close_block = [&] {
      if (writer.size() == 0) return;
      BlockPiece::Part part{.rows = writer.size(), .form = writer.form()};
      part.block.set([&](Element& block) { block = writer.finish(); });
      piece.parts.push_back(std::move(part));
    };
    GatheredPiece rows(source_.rows(), piece.rows);
    Element row;
    for (std::int64_t i = 0; i < count; ++i) {
      try {
        if (gathered)
          rows.give(i, row);
        else
          piece.rows.items[static_cast<std::size_t>(i)].give(row);
        map_->run(row, pass_key_, piece.rows.first_row + i);
        if (writer.try_add(row)) continue;
        close_block();  // rows of another form: a block of their own
        writer.add(row);
      } catch (...) {
        close_block();
        fail();
      }
    }
    close_block();
    piece_size_.measured(count, Clock::now() - start);
  }

  MapWorkPtr map_;
  std::int64_t size_;
  bool drop_remainder_;
  std::string where_;
  std::uint64_t pass_key_;
  PieceSource source_;
  PieceSize piece_size_;
  BlockPiece piece_;
  LazyWorkers<BlockPiece> workers_;  // last: its threads use all of the above
};

}  // namespace

IteratorPtr make_parallel_map_iterator(MapWorkPtr map, const Stage& input, const IterationContext& context) {
  return std::make_unique<ParallelMapIterator>(std::move(map), input, context);
}

IteratorPtr make_mapped_batch_iterator(MapWorkPtr map, const Stage& input, const IterationContext& context,
                                       const BatchShape& shape, std::string where) {
  return std::make_unique<MappedBatchIterator>(std::move(map), input, context, shape, std::move(where));
}

}  // namespace lockstep::data
