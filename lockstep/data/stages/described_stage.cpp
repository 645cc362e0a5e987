#include "lockstep/data/stages/described_stage.h"

namespace lockstep::data {
namespace {

class DescribedStage final : public StageOf<DescribedStage> {
 public:
  DescribedStage(std::vector<StagePtr> inputs, StageDescription description)
      : StageOf(std::move(inputs)), is_(std::move(description)) {
    look_at_inputs();
  }

  std::string_view kind() const override { return is_.kind; }
  std::string describe() const override { return is_.text; }
  std::string identity() const override { return is_.identity; }
  StageTraits traits() const override { return is_.traits; }
  Cardinality cardinality() const override { return cardinality_; }
  Trust trust() const override { return is_.trust ? is_.trust(basis()) : Stage::trust(); }
  Cardinality total_rows() const override {
    const Cardinality rows = is_.total_rows ? is_.total_rows(basis()) : Cardinality::unknown();
    return rows.is_unknown() ? Stage::total_rows() : rows;
  }
  ElementSpec element_spec() const override { return spec_; }
  std::optional<std::string> position_obstacle() const override { return is_.position_obstacle; }
  RowSourcePtr row_source() const override { return is_.rows ? is_.rows(basis()) : nullptr; }
  IndexIteratorPtr make_index_iterator(const IterationContext& context) const override {
    return is_.order(basis(), context);
  }

 protected:
  void set_inputs(std::vector<StagePtr> inputs) override {
    Stage::set_inputs(std::move(inputs));
    look_at_inputs();
  }
  IteratorPtr make_iterator(const IterationContext& context) const override { return is_.iterate(basis(), context); }

 private:
  const Stage& basis() const { return inputs().empty() || is_.takes_any_number ? *this : *input(); }
  void look_at_inputs() {
    cardinality_ = is_.cardinality(basis());
    spec_ = is_.spec(basis());
  }

  StageDescription is_;
  // Found once: a stage with several inputs may be the input of another one several times, and so on; and programs build
  // long chains of `concatenate` in loops, which nothing must go down by recursion.
  Cardinality cardinality_ = Cardinality::unknown();
  ElementSpec spec_;
};

}  // namespace

StagePtr make_stage(std::vector<StagePtr> inputs, StageDescription description) {
  return std::make_shared<DescribedStage>(std::move(inputs), std::move(description));
}

}  // namespace lockstep::data
