#include "lockstep/data/stages/map.h"

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/one_to_one.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/user_call.h"

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

MapStage::MapStage(StagePtr input, MapFunction function, ElementSpec result, MapOptions options)
    : Stage({std::move(input)}),
      function_(std::move(function)),
      result_(std::move(result)),
      options_(std::move(options)) {
  check_and_describe();
}

MapStage::MapStage(StagePtr input, KeyedMapFunction function, ElementSpec result, MapOptions options)
    : Stage({std::move(input)}), keyed_(std::move(function)), result_(std::move(result)), options_(std::move(options)) {
  check_and_describe();
}

void MapStage::check_and_describe() {
  if (options_.parallel_calls < 0 || options_.parallel_calls > 1024)
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("parallel_calls must lie between 0 and 1024, not ", options_.parallel_calls),
         .where = "map",
         .help = "give 0 to compute on the caller's thread, or about as many calls as there are cores"});
  const auto line = [&](bool with_calls) {
    std::string parts = options_.name;
    const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
    if (with_calls && options_.parallel_calls > 0) add(counted(options_.parallel_calls, "parallel call"));
    if (options_.parallel_calls > 0 && !options_.ordered) add("unordered");
    if (options_.seed) add(str("seed ", *options_.seed));
    return str(keyed_ ? "map_with_random" : "map", parts.empty() ? "" : str("(", parts, ")"));
  };
  description_ = line(true);
  identity_ = line(false);
}

StagePtr MapStage::with_inputs(std::vector<StagePtr> inputs) const {
  if (keyed_) return std::make_shared<MapStage>(std::move(inputs.front()), keyed_, result_, options_);
  return std::make_shared<MapStage>(std::move(inputs.front()), function_, result_, options_);
}

ElementSpec MapStage::element_spec() const { return options_.spec ? options_.spec(input()->element_spec()) : result_; }

std::optional<std::string> MapStage::position_obstacle() const {
  if (options_.parallel_calls > 0 && !options_.ordered) return "parallel calls that do not keep the order";
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
  auto self = std::static_pointer_cast<const MapStage>(shared_from_this());
  if (options_.parallel_calls > 0)
    return make_parallel_map_iterator(std::move(self), context, pass_key(context), context_below(context));
  return std::make_unique<MapIterator>(std::move(self), input()->iterate(context_below(context)), pass_key(context));
}

}  // namespace lockstep::data
