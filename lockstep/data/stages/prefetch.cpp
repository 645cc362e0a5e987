#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/pipeline_thread.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/stages/pieces.h"
#include "lockstep/data/stages/stages.h"
#include "lockstep/data/workers.h"

namespace lockstep::data {
namespace {

class PrefetchIterator final : public OneToOneIterator {
 public:
  PrefetchIterator(IteratorPtr input, std::size_t slots, bool chunks, std::shared_ptr<StageCounters> counters)
      : OneToOneIterator(std::move(input)),
        deferred_(input_->deferred()),
        slots_(slots),
        chunks_(chunks),
        counters_(std::move(counters)) {}

  bool next(Element& element) override {
    if (!piece_.has_next()) {
      if (!workers_) start_once_([this] { start(); });
      if (counters_) counters_->buffer(workers_->ready(), slots_);
      if (!workers_->take(piece_)) return false;
    }
    piece_.next(element);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    // The thread may have read ahead already; until it starts nothing has to be computed.
    return workers_ ? ElementIterator::skip(count) : OneToOneIterator::skip(count);
  }

 private:
  // Batches whose rows are known beforehand are gathered by two threads: one does not reach the speed of the memory.
  void start() {
    const int threads = deferred_ != nullptr && slots_ > 1 ? 2 : 1;
    workers_ = std::make_unique<Workers<ElementPiece>>(
        threads, slots_,
        WorkerFunctions<ElementPiece>{[this](ElementPiece& piece) { return deferred_ ? decide(piece) : fill(piece); },
                                      [this](ElementPiece& piece) {
                                        if (deferred_) compute(piece);
                                      },
                                      [] { prepare_pipeline_thread("ls-prefetch"); }});
  }

  bool decide(ElementPiece& piece) {
    piece.clear();
    try {
      return deferred_->decide(piece.indices);
    } catch (...) {
      piece.add().error = std::current_exception();
      return true;
    }
  }

  void compute(ElementPiece& piece) const {
    if (piece.count > 0) return;  // an error took its place
    Place& item = piece.add();
    try {
      deferred_->compute(piece.indices, piece.pool, item.element);
    } catch (...) {
      item.error = std::current_exception();
    }
  }

  bool fill(ElementPiece& piece) {
    piece.clear();
    const auto start = std::chrono::steady_clock::now();
    piece.fill(*input_, chunks_ ? size_.get() : 1);
    if (chunks_) size_.measured(static_cast<std::int64_t>(piece.count), std::chrono::steady_clock::now() - start);
    return piece.count > 0;
  }

  DeferredIterator* deferred_;  // the input, if it can be asked that way
  std::size_t slots_;
  bool chunks_;
  std::shared_ptr<StageCounters> counters_;
  PieceSize size_;
  ElementPiece piece_;
  StartOnce start_once_;
  std::unique_ptr<Workers<ElementPiece>> workers_;
};

}  // namespace

StagePtr make_prefetch(StagePtr input, std::int64_t buffer_size) {
  const std::int64_t slots = buffer_size == -1 ? 2 : buffer_size;
  if (slots < 0 || slots > 1'000'000)
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("the buffer size of prefetch must be from 0 to 1000000, got ", buffer_size),
                           .where = "prefetch",
                           .help = "call prefetch() for 2 elements, or prefetch(0) to read nothing ahead"});
  return make_stage({std::move(input)},
                    {.kind = "prefetch",
                     .text = str("prefetch(", slots, ")"),
                     .identity = "",
                     .traits = {.source = StageTraits::Source::Inputs,
                                .elements = StageTraits::Elements::Same,
                                .runs_functions = false,
                                .only_buffers = true},
                     .iterate = [slots](const Stage& below, const IterationContext& context) -> IteratorPtr {
                       IteratorPtr elements = below.iterate(context);
                       if (slots == 0) return elements;
                       return std::make_unique<PrefetchIterator>(std::move(elements), static_cast<std::size_t>(slots),
                                                                 false, context.counters);
                     }});
}

IteratorPtr read_ahead_in_chunks(IteratorPtr input) {
  return std::make_unique<PrefetchIterator>(std::move(input), 4, true, nullptr);
}

}  // namespace lockstep::data
