#include "lockstep/data/stages/map.h"

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/user_call.h"

namespace lockstep::data {
namespace {

class MapIterator final : public ElementIterator {
 public:
  MapIterator(std::shared_ptr<const MapStage> stage, IteratorPtr input)
      : stage_(std::move(stage)), input_(std::move(input)) {}

  bool next(Element& element) override {
    if (!input_->next(element)) return false;
    const c10::AutoGradMode no_grad(false);
    call_for_stage(stage_->description(), [&] { stage_->function()(element); });
    return true;
  }

  std::int64_t skip(std::int64_t count) override { return input_->skip(count); }
  void locate(std::int64_t consumed, Position& position) const override { input_->locate(consumed, position); }
  void restore(Position& position) override { input_->restore(position); }

 private:
  std::shared_ptr<const MapStage> stage_;
  IteratorPtr input_;
};

}  // namespace

MapStage::MapStage(StagePtr input, MapFunction function, ElementSpec result, MapOptions options)
    : Stage({std::move(input)}),
      function_(std::move(function)),
      result_(std::move(result)),
      options_(std::move(options)) {
  if (options_.parallel_calls < 0 || options_.parallel_calls > 1024)
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("parallel_calls must lie between 0 and 1024, not ", options_.parallel_calls), .where = "map"});
  std::string parts = options_.name;
  const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
  if (options_.parallel_calls > 0) add(counted(options_.parallel_calls, "parallel call"));
  if (options_.parallel_calls > 0 && !options_.ordered) add("unordered");
  description_ = parts.empty() ? "map" : str("map(", parts, ")");
}

StagePtr MapStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<MapStage>(std::move(inputs.front()), function_, result_, options_);
}

ElementSpec MapStage::element_spec() const { return options_.spec ? options_.spec(input()->element_spec()) : result_; }

std::optional<std::string> MapStage::position_obstacle() const {
  if (options_.parallel_calls > 0 && !options_.ordered) return "parallel calls that do not keep the order";
  return std::nullopt;
}

IteratorPtr MapStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<MapIterator>(std::static_pointer_cast<const MapStage>(shared_from_this()),
                                       input()->iterate(context));
}

}  // namespace lockstep::data
