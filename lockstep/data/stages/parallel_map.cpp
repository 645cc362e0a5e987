#include <variant>

#include "lockstep/data/one_to_one.h"
#include "lockstep/data/ordered_workers.h"
#include "lockstep/data/pipeline_thread.h"
#include "lockstep/data/row_view.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/element_piece.h"
#include "lockstep/data/stages/map.h"

namespace lockstep::data {
namespace {

using Clock = std::chrono::steady_clock;

/// Threads take a few elements at a time from the input, compute them, and put them into a ring in the order of the
/// input. Of rows of a source only the numbers are taken under the lock; a worker gathers its rows itself.
class ParallelMapIterator final : public ElementIterator {
 public:
  ParallelMapIterator(std::shared_ptr<const MapStage> stage, const IterationContext& context, std::uint64_t pass_key,
                      const IterationContext& below)
      : stage_(std::move(stage)), pass_key_(pass_key), counters_(context.counters) {
    if ((rows_ = stage_->input()->row_source()))
      indices_ = stage_->input()->make_index_iterator(below);
    else
      input_ = stage_->input()->iterate(below);
  }

  bool next(Element& element) override {
    if (!piece_.has_next()) {
      if (!workers_) start();
      if (counters_) counters_->buffer(workers_->ready(), slots());
      if (!workers_->take(piece_)) return false;
    }
    piece_.next(element);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    if (workers_) return ElementIterator::skip(count);
    const std::int64_t skipped = rows_ ? indices_->skip(count) : input_->skip(count);
    row_ += skipped;
    return skipped;
  }

  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed);
    if (!rows_) input_->locate(consumed, position);
  }
  void restore(Position& position) override {
    row_ = position.pop();
    if (rows_)
      indices_->skip(row_);
    else
      input_->restore(position);
  }

 private:
  std::size_t slots() const { return 2 * static_cast<std::size_t>(stage_->options().parallel_calls) + 2; }

  void start() {
    WorkerFunctions<ElementPiece> functions{[this](ElementPiece& piece) { return fill(piece); },
                                            [this](ElementPiece& piece) { compute(piece); },
                                            [] { prepare_pipeline_thread("ls-map"); }};
    const int threads = stage_->options().parallel_calls;
    if (stage_->options().ordered)
      workers_ = std::make_unique<OrderedWorkers<ElementPiece>>(threads, slots(), std::move(functions));
    else
      workers_ = std::make_unique<UnorderedWorkers<ElementPiece>>(threads, slots(), std::move(functions));
  }

  bool fill(ElementPiece& piece) {
    piece.clear();
    piece.first_row = row_;
    const std::int64_t wanted = size_.get();
    if (rows_) {
      piece.indices.resize(static_cast<std::size_t>(wanted));
      piece.indices.resize(indices_->next(piece.indices));
      row_ += static_cast<std::int64_t>(piece.indices.size());
      return !piece.indices.empty();
    }
    for (std::int64_t i = 0; i < wanted; ++i) {
      ElementPiece::Item& item = piece.add();
      try {
        if (input_->next(item.element)) continue;
        --piece.count;
        break;
      } catch (...) {
        item.error = std::current_exception();
      }
    }
    row_ += static_cast<std::int64_t>(piece.count);
    return piece.count > 0;
  }

  void compute(ElementPiece& piece) {
    const auto start = Clock::now();
    if (rows_) gather(piece);
    for (std::size_t i = 0; i < piece.count; ++i) {
      ElementPiece::Item& item = piece.items[i];
      if (item.error) continue;
      try {
        stage_->run(item.element, pass_key_, piece.first_row + static_cast<std::int64_t>(i));
      } catch (...) {
        item.error = std::current_exception();
      }
    }
    const auto took = Clock::now() - start;
    size_.measured(static_cast<std::int64_t>(piece.count), took);
    if (counters_) counters_->computing_ns.fetch_add(std::chrono::nanoseconds(took).count(), std::memory_order_relaxed);
  }

  void gather(ElementPiece& piece) {
    const std::size_t count = piece.indices.size();
    try {
      Element block;
      rows_->gather(piece.indices, piece.pool, block);
      for (std::size_t i = 0; i < count; ++i) row_view(block, static_cast<std::int64_t>(i), piece.add().element);
    } catch (...) {
      piece.clear();
      for (std::size_t i = 0; i < count; ++i) piece.add().error = std::current_exception();
    }
  }

  std::shared_ptr<const MapStage> stage_;
  std::uint64_t pass_key_;
  std::shared_ptr<StageCounters> counters_;
  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> indices_;
  IteratorPtr input_;
  std::int64_t row_ = 0;
  PieceSize size_;
  ElementPiece piece_;
  std::unique_ptr<Workers<ElementPiece>> workers_;  // last: its threads use all of the above
};

}  // namespace

IteratorPtr make_parallel_map_iterator(std::shared_ptr<const MapStage> stage, const IterationContext& context,
                                       std::uint64_t pass_key, const IterationContext& below) {
  return std::make_unique<ParallelMapIterator>(std::move(stage), context, pass_key, below);
}

}  // namespace lockstep::data
