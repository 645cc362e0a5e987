#include "lockstep/data/stages/pieces.h"

namespace lockstep::data {
namespace {

class PrefetchIterator final : public OneToOneIterator {
 public:
  PrefetchIterator(IteratorPtr input, std::size_t slots, bool chunks, std::shared_ptr<StageCounters> counters)
      : OneToOneIterator(std::move(input)),
        deferred_(input_->deferred()),
        chunks_(chunks),
        counters_(std::move(counters)),
        // Batches whose rows are known beforehand are gathered by two threads: one cannot saturate the memory.
        workers_(deferred_ != nullptr && slots > 1 ? 2 : 1, slots,
                 {[this](ElementPiece& piece) { return deferred_ ? decide(piece) : fill(piece); },
                  [this](ElementPiece& piece) {
                    if (deferred_) compute(piece);
                  },
                  [] { prepare_pipeline_thread("ls-prefetch"); }}) {}

  bool next(Element& element) override { return piece_.next_of(workers_, counters_.get(), element); }

  std::int64_t skip(std::int64_t count) override {
    // The thread may have read ahead already; until it starts nothing has to be computed.
    return workers_.have_started() ? ElementIterator::skip(count) : OneToOneIterator::skip(count);
  }

 private:
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
    piece.add().set([&](Element& element) { deferred_->compute(piece.indices, piece.pool, element); });
  }

  bool fill(ElementPiece& piece) {
    piece.clear();
    const auto start = std::chrono::steady_clock::now();
    piece.fill(*input_, chunks_ ? size_.get() : 1);
    if (chunks_) size_.measured(static_cast<std::int64_t>(piece.count), std::chrono::steady_clock::now() - start);
    return piece.count > 0;
  }

  DeferredIterator* deferred_;  // the input, if it supports deferral
  bool chunks_;
  std::shared_ptr<StageCounters> counters_;
  PieceSize size_;
  ElementPiece piece_;
  LazyWorkers<ElementPiece> workers_;  // last: its threads use all of the above
};

}  // namespace

StagePtr make_prefetch(StagePtr input, std::int64_t buffer_size) {
  const std::int64_t slots = buffer_size == -1 ? 2 : buffer_size;
  if (slots < 0 || slots > 1'000'000)
    refuse_option("prefetch", str("the buffer size of prefetch must be from 0 to 1000000, got ", buffer_size),
                  "call prefetch() for 2 elements, or prefetch(0) to read nothing ahead");
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
