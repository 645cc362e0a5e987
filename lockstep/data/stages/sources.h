#pragma once

#include <functional>
#include <memory>

#include "lockstep/data/stage.h"

// Sources: stages without input.
namespace lockstep::data {

/// One element, once.
class LOCKSTEP_EXPORT FromTensorsStage final : public Stage {
 public:
  explicit FromTensorsStage(Element element);

  std::string_view kind() const override { return "from_tensors"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr>) const override { return shared_from_this(); }
  Cardinality cardinality() const override { return 1; }
  ElementSpec element_spec() const override { return ElementSpec::of(element_); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Element element_;
};

/// The rows of any source that can be read in any order: `from_tensor_slices`, `range`, a mapped file.
class LOCKSTEP_EXPORT RowsStage final : public Stage {
 public:
  /// `contents`: what tells these rows from others that are described alike, for `identity`.
  RowsStage(std::string kind, std::string detail, RowSourcePtr rows, ElementSpec spec, std::string contents = "")
      : Stage({}),
        kind_(std::move(kind)),
        detail_(std::move(detail)),
        contents_(std::move(contents)),
        rows_(std::move(rows)),
        spec_(std::move(spec)) {}

  std::string_view kind() const override { return kind_; }
  std::string describe() const override { return kind_ + "(" + detail_ + ")"; }
  std::string identity() const override;
  StagePtr with_inputs(std::vector<StagePtr>) const override { return shared_from_this(); }
  Cardinality cardinality() const override { return rows_->size(); }
  ElementSpec element_spec() const override { return spec_; }
  RowSourcePtr row_source() const override { return rows_; }
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::string kind_;
  std::string detail_;
  std::string contents_;
  RowSourcePtr rows_;
  ElementSpec spec_;
};

/// Short lists in full, long ones by their ends and a check sum: "a.rec, b.rec".
LOCKSTEP_EXPORT std::string summary(const Strings& strings);

/// The rows of a batch: every component is cut along its first dimension.
LOCKSTEP_EXPORT StagePtr make_slices(Element batch);
/// start, start + step, ... as int64 scalars, up to but without stop.
LOCKSTEP_EXPORT StagePtr make_range(std::int64_t start, std::int64_t stop, std::int64_t step = 1);
/// One tensor of equal ones: (n, ...). An error that names the first that differs.
LOCKSTEP_EXPORT at::Tensor stack_slices(const std::vector<at::Tensor>& slices);

/// What is known about a generator.
struct GeneratorOptions {
  /// Every new generator yields the same elements again, so that positions can be saved.
  bool replayable = false;
  std::optional<ElementSpec> spec = std::nullopt;
  Cardinality cardinality = Cardinality::unknown();
};

/// Writes the next element; false at the end.
using Generator = std::function<bool(Element&)>;

class LOCKSTEP_EXPORT GeneratorStage final : public Stage {
 public:
  GeneratorStage(std::function<Generator()> make, ElementSpec spec, GeneratorOptions options)
      : Stage({}), make_(std::move(make)), spec_(std::move(spec)), options_(std::move(options)) {}

  std::string_view kind() const override { return "from_generator"; }
  StagePtr with_inputs(std::vector<StagePtr>) const override { return shared_from_this(); }
  Cardinality cardinality() const override { return options_.cardinality; }
  bool has_certain_cardinality() const override { return false; }
  ElementSpec element_spec() const override { return options_.spec.value_or(spec_); }
  std::optional<std::string> position_obstacle() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::function<Generator()> make_;
  ElementSpec spec_;
  GeneratorOptions options_;
};

}  // namespace lockstep::data
