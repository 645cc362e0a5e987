#include "lockstep/data/stages/map_stage.h"

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/place.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/stage_counters.h"

namespace lockstep::data {
namespace {

class MapIterator final : public CountingIterator {
 public:
  MapIterator(std::shared_ptr<const MapStage> stage, IteratorPtr input, std::uint64_t pass_key)
      : CountingIterator(std::move(input)), stage_(std::move(stage)), pass_key_(pass_key) {}

  bool next(Element& element) override {
    if (!next_input(element)) return false;
    const c10::AutoGradMode no_grad(false);
    stage_->run(element, pass_key_, count_ - 1);
    return true;
  }

 private:
  std::shared_ptr<const MapStage> stage_;
  std::uint64_t pass_key_;
};

}  // namespace

MapStage::MapStage(StagePtr input, MapFunction function, KeyedMapFunction keyed, ElementSpec result, MapOptions options)
    : StageOf({std::move(input)}),
      function_(std::move(function)),
      keyed_(std::move(keyed)),
      result_(std::move(result)),
      options_(std::move(options)) {
  if (options_.parallel_calls < 0 || options_.parallel_calls > 1024)
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("parallel_calls must be from 0 to 1024, got ", options_.parallel_calls),
         .where = "map",
         .help = "give 0 to compute on the caller's thread, or about as many calls as there are cores"});
  description_ = text(true);
  identity_ = text(false);
}

std::string MapStage::text(bool with_calls) const {
  std::string parts = options_.name;
  const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
  if (with_calls && is_parallel()) add(counted(options_.parallel_calls, "parallel call"));
  if (is_parallel() && !options_.ordered) add("unordered");
  if (options_.seed) add(str("seed ", *options_.seed));
  return str(keyed_ ? "map_with_random" : "map", parts.empty() ? "" : str("(", parts, ")"));
}

StageTraits MapStage::traits() const {
  return {.source = StageTraits::Source::Inputs,
          .elements = StageTraits::Elements::Mapped,
          .passes_over = !is_parallel()};  // threads that have started compute all
}

ElementSpec MapStage::element_spec() const { return options_.spec ? options_.spec(input()->element_spec()) : result_; }

std::optional<std::string> MapStage::position_obstacle() const {
  if (is_parallel() && !options_.ordered) return "parallel calls that do not keep the order";
  return std::nullopt;
}

void MapStage::run(Element& element, std::uint64_t pass_key, std::int64_t row) const {
  call_for_stage(description_, [&] {
    if (keyed_)
      keyed_(element, mix(pass_key, static_cast<std::uint64_t>(row)));
    else
      function_(element);
  });
}

std::uint64_t MapStage::pass_key(const IterationContext& context) const {
  return mix(options_.seed ? *options_.seed : context.stage_seed(), context.epoch);
}

IterationContext MapStage::context_below(const IterationContext& context) const {
  return keyed_ ? context.below(0) : context;
}

IteratorPtr MapStage::make_iterator(const IterationContext& context) const {
  if (is_parallel()) return make_parallel_map_iterator(self(), context);
  return std::make_unique<MapIterator>(self(), input()->iterate(context_below(context)), pass_key(context));
}

IteratorPtr MapStage::make_batch_iterator(const IterationContext& context, const BatchShape& shape,
                                          const std::string& where) const {
  if (!is_parallel() || !options_.ordered || context.meter) return nullptr;
  return make_mapped_batch_iterator(self(), context, shape, where);
}

void MapStage::describe_to(StageCounters& counters) const {
  counters.parallel_calls = options_.parallel_calls;
  counters.label = options_.name;
}

StagePtr make_map(StagePtr input, MapFunction function, ElementSpec result, MapOptions options) {
  return std::make_shared<MapStage>(std::move(input), std::move(function), nullptr, std::move(result),
                                    std::move(options));
}

StagePtr make_map(StagePtr input, KeyedMapFunction function, ElementSpec result, MapOptions options) {
  return std::make_shared<MapStage>(std::move(input), nullptr, std::move(function), std::move(result),
                                    std::move(options));
}

}  // namespace lockstep::data
