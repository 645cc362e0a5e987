#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline_thread.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/stages/map_work.h"
#include "lockstep/data/stages/pieces.h"
#include "lockstep/data/workers.h"

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
        source_(input, map_->context_below(context)) {}

  bool next(Element& element) override {
    if (!piece_.has_next()) {
      if (!workers_) start_once_([this] { start(); });
      if (counters_) counters_->buffer(workers_->ready(), slots());
      if (!workers_->take(piece_)) return false;
    }
    piece_.next(element);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    return workers_ ? ElementIterator::skip(count) : source_.skip(count);
  }
  void locate(std::int64_t consumed, Position& position) const override { source_.locate(consumed, position); }
  void restore(Position& position) override { source_.restore(position); }

 private:
  std::size_t slots() const { return 2 * static_cast<std::size_t>(map_->options.parallel_calls) + 2; }

  void start() {
    WorkerFunctions<ElementPiece> functions{[this](ElementPiece& piece) { return source_.fill(piece, size_.get()); },
                                            [this](ElementPiece& piece) { compute(piece); },
                                            [] { prepare_pipeline_thread("ls-map"); }};
    const MapOptions& options = map_->options;
    workers_ = std::make_unique<Workers<ElementPiece>>(options.parallel_calls, slots(), std::move(functions),
                                                       options.ordered ? PieceOrder::AsInput : PieceOrder::AsFinished);
  }

  void compute(ElementPiece& piece) {
    const auto start = Clock::now();
    if (source_.rows()) gather(piece);
    for (std::size_t i = 0; i < piece.count; ++i) {
      Place& item = piece.items[i];
      if (item.error) continue;
      try {
        map_->run(item.element, pass_key_, piece.first_row + static_cast<std::int64_t>(i));
      } catch (...) {
        item.error = std::current_exception();
      }
    }
    const auto took = Clock::now() - start;
    size_.measured(static_cast<std::int64_t>(piece.count), took);
    if (counters_) counters_->computing_ns.fetch_add(std::chrono::nanoseconds(took).count(), std::memory_order_relaxed);
  }

  void gather(ElementPiece& piece) {
    const GatheredPiece rows(source_.rows(), piece);
    for (std::size_t i = 0; i < piece.indices.size(); ++i) {
      Place& item = piece.add();
      try {
        rows.give(static_cast<std::int64_t>(i), item.element);
      } catch (...) {
        item.error = std::current_exception();
      }
    }
  }

  MapWorkPtr map_;
  std::uint64_t pass_key_;
  std::shared_ptr<StageCounters> counters_;
  PieceSource source_;
  PieceSize size_;
  ElementPiece piece_;
  StartOnce start_once_;
  std::unique_ptr<Workers<ElementPiece>> workers_;  // last: its threads use all of the above
};

}  // namespace

IteratorPtr make_parallel_map_iterator(MapWorkPtr map, const Stage& input, const IterationContext& context) {
  return std::make_unique<ParallelMapIterator>(std::move(map), input, context);
}

}  // namespace lockstep::data
