#include "lockstep/data/stages/map_work.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/data/iterators.h"
#include "lockstep/data/random_key.h"

namespace lockstep::data {
namespace {

class MapIterator final : public CountingIterator {
 public:
  MapIterator(MapWorkPtr map, const Stage& input, const IterationContext& context)
      : CountingIterator(input.iterate(map->context_below(context))),
        map_(std::move(map)),
        pass_key_(map_->pass_key(context)) {}

  bool next(Element& element) override {
    if (!next_input(element)) return false;
    const c10::AutoGradMode no_grad(false);
    map_->run(element, pass_key_, count_ - 1);
    return true;
  }

 private:
  MapWorkPtr map_;
  std::uint64_t pass_key_;
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
                 .passes_over = !is_parallel},  // threads that have started compute all
      .spec = [map, result = std::move(result)](
                  const Stage& below) { return map->options.spec ? map->options.spec(below.element_spec()) : result; },
      .iterate = [map](const Stage& below, const IterationContext& context) -> IteratorPtr {
        if (map->options.parallel_calls > 0) return make_parallel_map_iterator(map, below, context);
        return std::make_unique<MapIterator>(map, below, context);
      },
      .parallel_calls = options.parallel_calls,
      .label = options.name};
  if (is_parallel && options.ordered)
    description.batches = [map](const Stage& below, const IterationContext& context, const BatchShape& shape,
                                const std::string& where) -> IteratorPtr {
      return context.meter ? nullptr : make_mapped_batch_iterator(map, below, context, shape, where);
    };
  if (is_parallel && !options.ordered)
    description.position_obstacle = [] { return "parallel calls that do not keep the order"; };
  return make_stage({std::move(input)}, std::move(description));
}

class EnumerateIterator final : public CountingIterator {
 public:
  EnumerateIterator(IteratorPtr input, std::int64_t start) : CountingIterator(std::move(input)), start_(start) {}

  bool next(Element& element) override {
    if (!next_input(element)) return false;
    Element numbered = Element::of(at::scalar_tensor(start_ + count_ - 1, at::kLong));
    append(numbered, std::move(element));
    element = std::move(numbered);
    return true;
  }

 private:
  std::int64_t start_;
};

}  // namespace

void MapWork::run(Element& element, std::uint64_t pass_key, std::int64_t row) const {
  call_for_stage(stage, [&] { function(element, mix(pass_key, static_cast<std::uint64_t>(row))); });
}

std::uint64_t MapWork::pass_key(const IterationContext& context) const {
  return mix(options.seed ? *options.seed : context.stage_seed(), context.epoch);
}

IterationContext MapWork::context_below(const IterationContext& context) const {
  return is_random ? context.below(0) : context;
}

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
       .iterate = over_input<EnumerateIterator>(start)});
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
