#include "lockstep/data/stage.h"

#include "lockstep/base/error.h"
#include "lockstep/data/stage_counters.h"
#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/stages.h"

namespace lockstep::data {

namespace {

/// Elements one by one from rows and an order.
class RowIterator final : public ElementIterator {
 public:
  RowIterator(RowSourcePtr rows, IndexIteratorPtr order) : rows_(std::move(rows)), indices_(std::move(order)) {}

  bool next(Element& element) override {
    std::int64_t index = 0;
    if (!indices_(index)) return false;
    element = rows_->row(index);
    return true;
  }
  std::int64_t skip(std::int64_t count) override { return indices_.skip(count); }
  void locate(std::int64_t consumed, Position& position) const override { indices_.order().locate(consumed, position); }
  void restore(Position& position) override { indices_.order().restore(position); }

 private:
  RowSourcePtr rows_;
  IndexReader indices_;
};

}  // namespace

RowSource::~RowSource() = default;

PassState::~PassState() = default;

Stage::Stage(std::vector<StagePtr> inputs, StageDescription description)
    : inputs_(std::move(inputs)), is_(std::move(description)) {
  for (const StagePtr& input : inputs_) {
    reliability_ = std::min(reliability_, input->reliability());
    depth_ = std::max(depth_, input->depth() + 1);
  }
  cardinality_ = is_.cardinality ? is_.cardinality(basis()) : input()->cardinality();
  if (is_.reliability) reliability_ = is_.reliability(basis());
  spec_ = is_.spec ? is_.spec(basis()) : input()->element_spec();
}

// A long chain is freed one stage at a time: recursion would need a stack of its length.
Stage::~Stage() {
  std::vector<StagePtr> dying = std::move(inputs_);
  while (!dying.empty()) {
    const StagePtr last = std::move(dying.back());
    dying.pop_back();
    if (last.use_count() == 1) dying.insert(dying.end(), last->inputs_.begin(), last->inputs_.end());
  }
}

const Stage& Stage::basis() const { return inputs_.empty() || is_.takes_any_number ? *this : *input(); }

Cardinality Stage::total_rows() const {
  const Cardinality known = is_.total_rows ? is_.total_rows(basis()) : Cardinality::unknown();
  if (!known.is_unknown()) return known;
  if (traits().elements == StageTraits::Elements::Same) return input()->total_rows();
  const auto rows = rows_by_spec(element_spec());
  return rows ? multiplied(cardinality_if(Reliability::Promised), *rows) : Cardinality::unknown();
}

StagePtr Stage::with_inputs(std::vector<StagePtr> inputs, int workers, int worker) const {
  if (inputs.empty()) return shared_from_this();
  StageDescription description = is_.on_other_input ? is_.on_other_input(*inputs.front(), workers, worker) : is_;
  description.on_other_input = is_.on_other_input;
  auto copy = std::make_shared<Stage>(std::move(inputs), std::move(description));
  copy->measured_as_ = measured_as_;
  return copy;
}

std::optional<std::string> Stage::position_obstacle() const {
  return is_.position_obstacle ? is_.position_obstacle() : std::nullopt;
}

RowSourcePtr Stage::row_source() const { return is_.rows ? is_.rows(basis()) : nullptr; }

IndexIteratorPtr Stage::make_index_iterator(const IterationContext& context) const {
  return is_.order ? is_.order(basis(), context) : nullptr;
}

IteratorPtr Stage::make_batch_iterator(const IterationContext& context, const BatchShape& shape,
                                       const std::string& where) const {
  return is_.batches ? is_.batches(basis(), context, shape, where) : nullptr;
}

IteratorPtr Stage::iterate(const IterationContext& context) const {
  if (!context.meter || !traits().is_measured) return is_.iterate(basis(), context);
  IterationContext metered = context;
  metered.counters = context.meter->counters_of(
      measured_as(),
      {.name = is_.label, .kind = kind(), .description = describe(), .parallel_calls = is_.parallel_calls},
      context.counters.get());
  return make_metered_iterator(is_.iterate(basis(), metered), *this, metered.counters);
}

StagePtr make_stage(std::vector<StagePtr> inputs, StageDescription description) {
  return std::make_shared<Stage>(std::move(inputs), std::move(description));
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

IteratorPtr make_row_iterator(RowSourcePtr rows, IndexIteratorPtr order) {
  return std::make_unique<RowIterator>(std::move(rows), std::move(order));
}

}  // namespace lockstep::data
