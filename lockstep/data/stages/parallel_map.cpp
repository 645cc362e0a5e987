#include "lockstep/data/iterators.h"
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

}  // namespace

IteratorPtr make_parallel_map_iterator(MapWorkPtr map, const Stage& input, const IterationContext& context) {
  return std::make_unique<ParallelMapIterator>(std::move(map), input, context);
}

}  // namespace lockstep::data
