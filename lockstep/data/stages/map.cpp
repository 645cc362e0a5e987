#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "lockstep/data/iterators.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/row_writer.h"
#include "lockstep/data/stages/batching.h"
#include "lockstep/data/stages/pieces.h"

namespace lockstep::data {
namespace {

/// The function of `map` or `map_with_random`. Shared by the iterators of a stage and their threads.
struct MapWork {
  KeyedMapFunction function;
  bool is_random = false;
  MapOptions options;
  std::string stage;  ///< for messages

  /// Computes one element. Adds the stage's name to exceptions.
  void run(Element& element, std::uint64_t pass_key, std::int64_t row) const {
    try {
      function(element, mix(pass_key, static_cast<std::uint64_t>(row)));
    } catch (...) {
      rethrow_with_stage(stage);
    }
  }
  /// Basis of the keys of this pass's rows, and of the context of the input.
  std::uint64_t pass_key(const IterationContext& context) const {
    return mix(options.seed ? *options.seed : context.stage_seed(), context.epoch);
  }
  IterationContext context_below(const IterationContext& context) const {
    return is_random ? context.below(0) : context;
  }
};
using MapWorkPtr = std::shared_ptr<const MapWork>;

/// Applies `change(element, number)` to each element, without gradients.
template <class Change>
class NumberedIterator final : public CountingIterator {
 public:
  NumberedIterator(IteratorPtr input, Change change) : CountingIterator(std::move(input)), change_(std::move(change)) {}

  bool next(Element& element) override {
    const std::int64_t number = count_++;  // counts even if it fails
    if (!input_->next(element)) return false;
    const c10::AutoGradMode no_grad(false);
    change_(element, number);
    return true;
  }

 private:
  Change change_;
};

template <class Change>
IteratorPtr change_numbered(IteratorPtr input, Change change) {
  return std::make_unique<NumberedIterator<Change>>(std::move(input), std::move(change));
}

using Clock = std::chrono::steady_clock;

/// Threads take a few elements at a time from the input, compute them, and put them into a ring in the order of the
/// input. For rows of a source, only the numbers are taken under the lock; a worker gathers its rows itself.
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

/// Rows that were computed together: blocks of rows of one form, and errors for failed rows.
struct BlockPiece {
  struct Part {
    std::int64_t rows = 0;
    Place block = {};                            // or an error in place of the rows
    std::optional<RowForm> form = std::nullopt;  // form of the block's rows
  };
  ElementPiece rows;  // the rows to compute
  std::vector<Part> parts;
  std::size_t taken = 0;
  BufferPool pool{8};
};

/// Batches of the results of a `map` with parallel calls, in one step: the thread that computes a row also puts it into
/// the batch. The batches equal those of the two separate stages.
class MappedBatchIterator final : public BatchingIterator<PieceSource> {
 public:
  MappedBatchIterator(MapWorkPtr map, const Stage& input, const IterationContext& context, const BatchShape& shape,
                      std::string where)
      : BatchingIterator(std::make_unique<PieceSource>(input, map->context_below(context)), shape),
        map_(std::move(map)),
        where_(std::move(where)),
        pass_key_(map_->pass_key(context)),
        piece_size_(shape.size),
        workers_(map_->options.parallel_calls, 2 * static_cast<std::size_t>(map_->options.parallel_calls),
                 {[this](BlockPiece& piece) { return fill(piece); }, [this](BlockPiece& piece) { compute(piece); },
                  [] { prepare_pipeline_thread("ls-map"); }}) {}

  // As when rows are stacked one by one: the first row that fails, or that differs from the first of its batch, is
  // reported, and the batch fails as a whole, unless it is a dropped remainder.
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
    if (error && (is_batch(have) || concerns_whole_stream(error))) std::rethrow_exception(error);
    if (!is_batch(have)) return false;
    element = concatenate_batches(std::move(blocks), where_);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    return workers_.have_started() ? ElementIterator::skip(count) : BatchingIterator::skip(count);
  }

 private:
  bool next_part(BlockPiece::Part& part) {
    while (piece_.taken == piece_.parts.size()) {
      if (!workers_.take(piece_)) return false;
    }
    part = std::move(piece_.parts[piece_.taken++]);
    return true;
  }

  bool fill(BlockPiece& piece) {
    // Pieces end with batches, so no row has to be kept for the next one, and one is often a whole batch.
    return input_->fill(piece.rows, std::min(piece_size_.get(), size_ - input_->passed() % size_));
  }

  void compute(BlockPiece& piece) {
    const auto start = Clock::now();
    piece.parts.clear();
    piece.taken = 0;
    const bool gathered = input_->rows() != nullptr;
    const auto count = static_cast<std::int64_t>(gathered ? piece.rows.indices.size() : piece.rows.count);
    RowWriter writer(piece.pool, where_);
    writer.set_capacity(count);
    const auto fail = [&] { piece.parts.push_back({.rows = 1, .block = {.error = std::current_exception()}}); };
    const auto close_block = [&] {
      if (writer.size() == 0) return;
      BlockPiece::Part part{.rows = writer.size(), .form = writer.form()};
      part.block.set([&](Element& block) { block = writer.finish(); });
      piece.parts.push_back(std::move(part));
      writer.start_batch();
    };
    GatheredPiece rows(input_->rows(), piece.rows);
    Element row;
    for (std::int64_t i = 0; i < count; ++i) {
      try {
        if (gathered)
          rows.give(i, row);
        else
          piece.rows.items[static_cast<std::size_t>(i)].give(row);
        map_->run(row, pass_key_, piece.rows.first_row + i);
        if (writer.add(row)) continue;
        close_block();  // rows of another form get their own block
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
  std::string where_;
  std::uint64_t pass_key_;
  PieceSize piece_size_;
  BlockPiece piece_;
  LazyWorkers<BlockPiece> workers_;  // last: its threads use all of the above
};

std::string text_of(const MapWork& map, bool with_calls) {
  const MapOptions& options = map.options;
  const bool is_parallel = options.parallel_calls > 0;
  std::string parts = options.name;
  const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
  if (with_calls && is_parallel) add(counted(options.parallel_calls, "parallel call"));
  if (is_parallel && !options.ordered) add("unordered");
  if (options.seed) add(str("seed ", *options.seed));
  return str(map.is_random ? "map_with_random" : "map", parts.empty() ? "" : str("(", parts, ")"));
}

StagePtr make_map_stage(StagePtr input, MapWork work, ElementSpec result) {
  if (work.options.parallel_calls < 0 || work.options.parallel_calls > 1024)
    refuse_option("map", str("parallel_calls must be from 0 to 1024, got ", work.options.parallel_calls),
                  "give 0 to compute on the caller's thread, or about as many calls as there are cores");
  work.stage = text_of(work, true);
  const auto map = std::make_shared<const MapWork>(std::move(work));
  const MapOptions& options = map->options;
  const bool is_parallel = options.parallel_calls > 0;
  StageDescription description{
      .kind = is_parallel ? "parallel_map" : "map",
      .text = map->stage,
      .identity = text_of(*map, false),
      .traits = {.source = StageTraits::Source::Inputs,
                 .elements = StageTraits::Elements::Mapped,
                 .passes_over = !is_parallel},  // threads compute everything once started
      .spec = [map, result = std::move(result)](
                  const Stage& below) { return map->options.spec ? map->options.spec(below.element_spec()) : result; },
      .iterate = [map](const Stage& below, const IterationContext& context) -> IteratorPtr {
        if (map->options.parallel_calls > 0) return std::make_unique<ParallelMapIterator>(map, below, context);
        return change_numbered(
            below.iterate(map->context_below(context)),
            [map, key = map->pass_key(context)](Element& element, std::int64_t row) { map->run(element, key, row); });
      },
      .parallel_calls = options.parallel_calls,
      .label = options.name};
  if (is_parallel && options.ordered)
    description.batches = [map](const Stage& below, const IterationContext& context, const BatchShape& shape,
                                const std::string& where) -> IteratorPtr {
      return context.meter ? nullptr : std::make_unique<MappedBatchIterator>(map, below, context, shape, where);
    };
  if (is_parallel && !options.ordered)
    description.position_obstacle = [] { return "parallel calls that do not keep the order"; };
  return make_stage({std::move(input)}, std::move(description));
}

}  // namespace

StagePtr make_map(StagePtr input, MapFunction function, ElementSpec result, MapOptions options) {
  const auto unkeyed = [function = std::move(function)](Element& element, std::uint64_t) { function(element); };
  return make_map_stage(std::move(input), {.function = unkeyed, .options = std::move(options)}, std::move(result));
}

StagePtr make_map(StagePtr input, KeyedMapFunction function, ElementSpec result, MapOptions options) {
  return make_map_stage(std::move(input),
                        {.function = std::move(function), .is_random = true, .options = std::move(options)},
                        std::move(result));
}

StagePtr make_enumerate(StagePtr input, std::int64_t start) {
  return make_stage(
      {std::move(input)},
      {.kind = "enumerate",
       .traits = {.elements = StageTraits::Elements::Mapped, .passes_over = true, .runs_functions = false},
       .spec =
           [](const Stage& below) {
             const ElementSpec number{{{ComponentSpec::tensor(at::kLong, PartialShape({}))}}};
             return number.joined_with(below.element_spec());
           },
       .iterate =
           [start](const Stage& below, const IterationContext& context) {
             return change_numbered(below.iterate(context), [start](Element& element, std::int64_t number) {
               Element numbered = Element::of(at::scalar_tensor(start + number, at::kLong));
               append(numbered, std::move(element));
               element = std::move(numbered);
             });
           }});
}

StagePtr make_scan(StagePtr input, Element initial, ScanFunction function, ElementSpec result, SpecFunction spec) {
  return make_stage({std::move(input)},
                    {.kind = "scan",
                     .traits = {.elements = StageTraits::Elements::Mapped},
                     .spec = [result = std::move(result), spec = std::move(spec)](
                                 const Stage& below) { return spec ? spec(below.element_spec()) : result; },
                     .iterate =
                         [initial = std::move(initial), function = std::move(function)](
                             const Stage& below, const IterationContext& context) {
                           return make_function_iterator([elements = below.iterate(context), state = own_copy(initial),
                                                          function](Element& element) mutable {
                             if (!elements->next(element)) return false;
                             const c10::AutoGradMode no_grad(false);
                             call_for_stage("scan", [&] { function(state, element); });
                             return true;
                           });
                         }});
}

}  // namespace lockstep::data
