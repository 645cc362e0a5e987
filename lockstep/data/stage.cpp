#include "lockstep/data/stage.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {

RowSource::~RowSource() = default;

Stage::Stage(std::vector<StagePtr> inputs) { set_inputs(std::move(inputs)); }

void Stage::set_inputs(std::vector<StagePtr> inputs) {
  inputs_ = std::move(inputs);
  trust_in_inputs_ = Trust::Certain;
  depth_ = 1;
  for (const StagePtr& input : inputs_) {
    trust_in_inputs_ = std::min(trust_in_inputs_, input->trust());
    depth_ = std::max(depth_, input->depth() + 1);
  }
  passes_ = 0;
}

// A long chain is let go of one stage at a time: if each freed the next, that would need as much stack.
Stage::~Stage() {
  std::vector<StagePtr> dying = std::move(inputs_);
  while (!dying.empty()) {
    const StagePtr last = std::move(dying.back());
    dying.pop_back();
    if (last.use_count() == 1) dying.insert(dying.end(), last->inputs_.begin(), last->inputs_.end());
  }
}

Cardinality Stage::total_rows() const {
  if (traits().elements == StageTraits::Elements::Same) return input()->total_rows();
  const auto rows = rows_by_spec(element_spec());
  return rows ? multiplied(cardinality_if(Trust::Promised), *rows) : Cardinality::unknown();
}

StagePtr Stage::for_worker(std::vector<StagePtr> inputs, int, int) const { return with_inputs(std::move(inputs)); }
StagePtr Stage::expand(Element&&) const { return nullptr; }
void Stage::save_lasting(Position&) const {}
void Stage::restore_lasting(Position&) const {}
IndexIteratorPtr Stage::make_index_iterator(const IterationContext&) const { return nullptr; }
IteratorPtr Stage::make_batch_iterator(const IterationContext&, const BatchShape&, const std::string&) const {
  return nullptr;
}

IteratorPtr Stage::iterate(const IterationContext& context) const {
  if (!context.meter || !traits().is_measured) return make_iterator(context);
  IterationContext metered = context;
  metered.counters = context.meter->counters_of(*this, context.counters.get());
  return make_metered_iterator(make_iterator(metered), *this, metered.counters);
}

const StagePtr& require_stage(const StagePtr& stage) {
  if (stage) return stage;
  throw FailedPrecondition(errors::kStructure, {.what = "this Dataset is empty: it was made without a source",
                                                .help = "make it with range, from_tensor_slices, tfrecord_dataset or "
                                                        "another source; range(0) has no elements"});
}

Cardinality cardinality_of(const Stage& stage) { return stage.cardinality(); }
ElementSpec element_spec_of(const Stage& stage) { return stage.element_spec(); }

const Stage& below_plain_stages(const Stage& stage) {
  const Stage* at = &stage;
  while (at->identity().empty()) at = at->input().get();
  return *at;
}

std::optional<std::int64_t> rows_by_spec(const ElementSpec& spec) {
  if (!spec.components || spec.components->empty()) return std::nullopt;
  std::optional<std::int64_t> rows;
  for (const ComponentSpec& component : *spec.components) {
    const std::int64_t mine = component.shape.rows();
    if (mine == PartialShape::kUnknown || mine != rows.value_or(mine)) return std::nullopt;
    rows = mine;
  }
  return rows;
}

}  // namespace lockstep::data
